"""Import and export of encoder-decoders of transformers: M2M100, NLLB, mBART, BART."""
