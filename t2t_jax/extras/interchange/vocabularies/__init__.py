"""The kinds of vocabularies of imported models, which `data.vocabulary` finds by their names."""
