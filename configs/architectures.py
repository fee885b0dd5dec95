"""Encoder-decoder against decoder-only, at equal parameters or at equal operations.

    t2t-jax sweep --config configs/architectures.py --workdir runs/architectures

The rows, at the size of the paper's base model on WMT 2014 English-German:

- encoder-decoder: the paper's, with 6 and 6 layers;
- decoder, decoder-prefix: one stack of 12 layers that reads source and target as one sequence (Liu
  et al. 2018). A token of a source sees those before it, or with a prefix all of the source (Raffel
  et al. 2020). d_ff is 2,560 in place of attention to an encoder, so that the matrices of the
  layers have as many weights; a token passes through all of them, which takes twice the operations;
- decoder-half, decoder-prefix-half: 6 such layers, with half of the weights and as many operations
  for a pair of sentences of one length as the paper's;
- deep-encoder: 10 layers of an encoder and 2 of a decoder (Kasai et al. 2021), with as many weights
  and operations but for the rounding of d_ff.

This grid has not been trained. docs/results/architectures_small.md has the same rows at a quarter
of the width and a third of the depth.
"""

from t2t_jax.config import Config, DataConfig

BASE = Config(data=DataConfig(corpus="wmt14-en-de:corpora/wmt14-en-de"))

_DECODER = {"model.architecture": "decoder_only", "model.d_ff": 2560}
_PREFIX = _DECODER | {"model.prefix_attention": True}
_AS_MANY_PARAMETERS = {"model.num_decoder_layers": 12}

VARIANTS = {
    "encoder-decoder": BASE,
    "decoder": BASE.replace(_DECODER | _AS_MANY_PARAMETERS),
    "decoder-prefix": BASE.replace(_PREFIX | _AS_MANY_PARAMETERS),
    "decoder-half": BASE.replace(_DECODER),
    "decoder-prefix-half": BASE.replace(_PREFIX),
    "deep-encoder": BASE.replace(
        {"model.num_encoder_layers": 10, "model.num_decoder_layers": 2, "model.d_ff": 2392}
    ),
}
