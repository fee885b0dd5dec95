"""How products and attention run fast here: derivatives, layouts, integers and fused kernels."""
