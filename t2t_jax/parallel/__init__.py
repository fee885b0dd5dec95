"""How arrays are laid out over devices."""
