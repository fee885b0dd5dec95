"""Fast products and attention: derivatives, memory layouts, 8-bit integers and fused kernels."""
