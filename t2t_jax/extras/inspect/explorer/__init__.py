"""Web pages that show the attention, beam search and input of a model."""
