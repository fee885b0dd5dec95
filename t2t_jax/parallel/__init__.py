"""The mesh of devices, how arrays are laid out over it, and how several processes agree."""
