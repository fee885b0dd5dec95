"""Fast matmuls and attention: custom derivatives, memory layouts, int8 and fused kernels."""
