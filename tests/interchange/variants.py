"""Options of a model, each of which changes what parameters there are or how they are used."""

from typing import Any

OPTIONS: dict[str, dict[str, Any]] = {
    "paper": {},
    "pre-norm": {"model.norm_order": "pre"},
    "deep-norm": {"model.norm_order": "deep"},
    "modern": {
        "model.norm": "rms",
        "model.norm_order": "pre",
        "model.position": "rotary",
        "model.feed_forward": "swiglu",
        "model.num_kv_heads": 2,
    },
    "multi-query": {"model.num_kv_heads": 1},
    "tensor2tensor-sinusoids": {"model.position": "sinusoidal_t2t"},
    "learned-positions": {"model.position": "learned"},
    "no-positions": {"model.position": "none"},
    "alibi": {"model.position": "alibi"},
    "relative-bias": {"model.position": "relative_bias"},
    "rotary-linear": {"model.position": "rotary", "model.rotary_scale": 2.0},
    "rotary-ntk": {
        "model.position": "rotary",
        "model.rotary_scale": 2.0,
        "model.rotary_scaling": "ntk",
    },
    "dot-product": {"model.score_function": "dot_product"},
    "additive": {"model.score_function": "additive"},
    "attention-bias": {"model.attention_bias": True},
    "query-key-norm": {"model.query_key_norm": True},
    "query-key-rms-norm": {"model.query_key_norm": True, "model.norm": "rms"},
    "window": {"model.attention_window": 4},
    "narrow-keys": {"model.d_k": 2},
    "wide-heads": {"model.d_k": 8, "model.d_v": 8},
    "untied": {"model.share_embeddings": False, "model.embedding_norm": True},
    "tied-target": {
        "model.share_embeddings": False,
        "model.share_target_embedding": True,
        "model.output_bias": True,
    },
    "unscaled-embeddings": {"model.scale_embeddings": False},
    "epsilon": {"model.norm_epsilon": 0.1},
    **{name: {"model.feed_forward": name} for name in ("gelu", "silu", "glu", "reglu", "geglu")},
}
