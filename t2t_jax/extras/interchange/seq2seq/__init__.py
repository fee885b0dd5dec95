"""Encoder-decoders of the library transformers: M2M100, NLLB, mBART, BART."""
