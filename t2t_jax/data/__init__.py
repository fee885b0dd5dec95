"""From text to batches: corpora, vocabularies, tokenized arrays and batches by step."""
