"""Encoder-decoders of fairseq as the library transformers has them: M2M100, NLLB, mBART, BART.

`kinds` says what is special of each, `entries` reads the vocabularies, and `reading` and `writing`
do the rest. The modules `interchange.m2m100`, `mbart` and `bart` are the formats.
"""
