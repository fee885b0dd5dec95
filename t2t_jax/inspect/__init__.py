"""Tools to inspect a model: pages, pictures, attention maps, and the worth of its heads."""
