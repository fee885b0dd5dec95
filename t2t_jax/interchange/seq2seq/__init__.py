"""Encoder-decoders of the library transformers: M2M100, NLLB, mBART, BART.

`forms` has them as formats, with what is special of each; `entries` reads the vocabularies, and
`reading` and `writing` do the rest.
"""
