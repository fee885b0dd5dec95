"""From text to batches: corpora, vocabulary, tokenised arrays, and step -> batch."""
