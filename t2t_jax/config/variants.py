"""Later variants of the Transformer, as changes of a base config.

`configs/modern.py` applies the variants to the paper's base model, `configs/modern_small.py` to a
small model. Variants that add or remove layer matrices change d_ff, so that the number of layer
parameters stays equal. Learned positions and unshared embeddings still add parameters.
"""

from collections.abc import Mapping

from t2t_jax.config.config import Config
from t2t_jax.config.families import EncoderDecoderConfig

_FEED_FORWARDS = "gelu", "silu", "glu", "reglu", "geglu", "swiglu"


def variants(base: Config, *, window: int = 16) -> dict[str, Config]:
    """Make a grid of a base config and its variants.

    Returns:
      Configs by name: `base`, one config for each single change, and `modern` with the changes that
      most later models combine.
    """
    model = base.model
    assert isinstance(model, EncoderDecoderConfig)
    half_heads = model.num_heads // 2 if model.num_heads % 2 == 0 else 1
    changes_by_name: dict[str, Mapping[str, object]] = {
        "base": {},
        "rms-norm": {"norm": "rms"},
        "pre-norm": {"norm_order": "pre"},
        "deep-norm": {"norm_order": "deep"},
        **{kind: {"feed_forward": kind} for kind in _FEED_FORWARDS},
        "t2t-sinusoids": {"position": "sinusoidal_t2t"},
        "learned-positions": {"position": "learned"},
        "rotary": {"position": "rotary"},
        "alibi": {"position": "alibi"},
        "relative-bias": {"position": "relative_bias"},
        "no-positions": {"position": "none"},
        "multi-query": {"num_kv_heads": 1},
        "grouped-query": {"num_kv_heads": half_heads},
        "window": {"attention_window": window},
        "dot-product": {"attention_kind": "dot_product"},
        "additive": {"attention_kind": "additive"},
        "attention-bias": {"attention_bias": True},
        "query-key-norm": {"query_key_norm": True},
        "untied": {"share_embeddings": False},
        "tied-target": {"share_embeddings": False, "share_target_embedding": True},
        "unscaled-embeddings": {"scale_embeddings": False},
        "embedding-norm": {"embedding_norm": True},
        "output-bias": {"output_bias": True},
        **_depths(model),
        "modern": {
            "norm": "rms",
            "norm_order": "pre",
            "feed_forward": "swiglu",
            "position": "rotary",
            "num_kv_heads": half_heads,
        },
    }
    return {
        name: base.replace(
            _of_equal_size(base, {f"model.{field}": value for field, value in row.items()})
        )
        for name, row in changes_by_name.items()
    }


def _depths(model: EncoderDecoderConfig) -> dict[str, Mapping[str, object]]:
    """Return variants of the depth: deep and narrow, shallow and wide, and a one-layer decoder."""
    n, m, heads = model.num_encoder_layers, model.num_decoder_layers, model.num_heads
    sizes = {"d_k": model.key_size, "d_v": model.value_size}
    return {
        "deep-narrow": sizes
        | {
            "num_encoder_layers": 2 * n,
            "num_decoder_layers": 2 * m,
            "num_heads": max(1, heads // 2),
            "d_ff": model.d_ff // 2,
        },
        "shallow-wide": sizes
        | {
            "num_encoder_layers": max(1, n // 2),
            "num_decoder_layers": max(1, m // 2),
            "num_heads": 2 * heads,
            "d_ff": 2 * model.d_ff,
        },
        "deep-encoder": {"num_encoder_layers": 2 * n, "num_decoder_layers": 1},
    }


def _of_equal_size(config: Config, changes: Mapping[str, object]) -> Mapping[str, object]:
    """Return changes of a config, with a `d_ff` that keeps the number of parameters in its layers.

    The value is a multiple of 8. Changes that set the depth are returned as given.
    """
    if "model.num_encoder_layers" in changes:
        return changes
    base, model = config.model, config.replace(changes).model
    num_attentions = sum(stack.num_layers * (1 + stack.attends_to_source) for stack in base.stacks)
    num_layers = sum(stack.num_layers for stack in base.stacks)
    saved_weights = base.attention.matrix_parameters - model.attention.matrix_parameters
    total_width = 2 * base.d_ff + num_attentions * saved_weights / (num_layers * base.d_model)
    width = total_width / model.feed_forward_matrices
    return changes if width == base.d_ff else {**changes, "model.d_ff": 8 * round(width / 8)}
