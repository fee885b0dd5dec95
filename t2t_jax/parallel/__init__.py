"""The device mesh, the sharding of arrays over it, and agreement between processes."""
