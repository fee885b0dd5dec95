"""Compare encoder-decoder and decoder-only models with equal parameters or equal FLOPs.

    t2t-jax sweep --config configs/architectures.py --workdir runs/architectures

The variants have the size of the paper's base model, on WMT 2014 English-German:

- encoder-decoder: the paper's model with 6 encoder layers and 6 decoder layers;
- decoder, decoder-prefix: a stack of 12 layers, which reads source and target as one sequence (Liu
  et al. 2018). Source tokens attend to earlier tokens, or in decoder-prefix to the whole source
  (Raffel et al. 2020). d_ff is 2,560, so that the layers have as many parameters as the paper's.
  Each token passes through all layers, which takes twice the FLOPs;
- decoder-half, decoder-prefix-half: 6 such layers, with half of the parameters, and the paper's
  FLOPs for a pair of sentences of equal length;
- deep-encoder: 10 encoder layers and 2 decoder layers (Kasai et al. 2021), with as many parameters
  and FLOPs as the paper's model, except for the rounding of d_ff.

We did not train this grid. docs/results/architectures_small.md has results of the same variants at
a quarter of the width and a third of the depth.
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
