"""Vocabularies of imported models; `data.vocabulary` finds these classes by name."""
