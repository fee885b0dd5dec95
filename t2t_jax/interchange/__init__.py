"""Models in the formats of other programs, out and in; `docs/interchange.md` has them."""
