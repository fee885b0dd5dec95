"""Encoder-decoders of the library transformers: M2M100, NLLB, mBART, BART.

`format` has the facts in which they differ, and `entries` reads the vocabularies.
"""
