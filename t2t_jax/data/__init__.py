"""Everything from text to batches: corpora, vocabularies, tokenised arrays and batches by step."""
