"""A look inside a model: pages, pictures, attention maps, and what its heads are worth."""
