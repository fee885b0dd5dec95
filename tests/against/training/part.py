"""Training steps of PyTorch: losses, gradients and parameters of up to 50 steps.

A case is trained with the same parameters, sentences and settings by both programs. The fields of a
case that have a dot are those of a `Config`. PyTorch trains twice: in float64, as the reference,
and with the roundings of `dtype`, which says how far roundings lead away from the reference.
"""

from typing import Any

import numpy as np

from tests.against.part import OURS, Case, Difference, Part, Step

PYTORCH, IN_FLOAT64 = "pytorch", "ours in float64"
LONGEST = 6
"""Tokens of the longest sentence."""
Result = dict[str, np.ndarray]
"""The results of a training: of each step the mean `loss` and `nll`, the number of `tokens`, the
`norm` of the gradient and the learning `rate`; and of each parameter its `gradient` in the first
step, and its value after the `first` and the `last` step and as a moving `average`."""
ORDER = "tokens", "rate", "loss", "nll", "norm", "gradient", "first", "last", "average"
"""The results in the order of their comparison."""
ROUNDINGS = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2**-8}
"""Differences that are too small to matter, of values up to 1 and in proportion to larger ones. In
float64, 50 steps of two programs are 1e-14 apart."""
FARTHER = 5.0
"""How many times as far from float64 this package may be as PyTorch in the same dtype."""
OF_KEY_BIASES = 1e-6
"""A bias of keys changes no attention, so its gradient is 0. Adam divides the roundings of it,
1e-17 in float64, by its epsilon, 1e-9."""

_PAPER: dict[str, Any] = {
    "model.d_model": 8,
    "model.num_heads": 1,
    "model.d_ff": 8,
    "model.num_encoder_layers": 1,
    "model.num_decoder_layers": 1,
    "model.norm_order": "post",
    "model.norm": "layer",
    "model.norm_epsilon": 1e-6,
    "model.feed_forward": "relu",
    "model.attention_bias": False,
    "model.output_bias": False,
    "model.embedding_norm": False,
    "model.position": "sinusoidal",
    "model.scale_embeddings": True,
    "model.share_embeddings": True,
    "model.share_source_embedding": False,
    "model.share_target_embedding": False,
    "training.schedule": "inverse_sqrt",
    "training.schedule_steps": None,
    "training.decay_fraction": 0.1,
    "training.warmup_steps": 4000,
    "training.learning_rate_factor": 1.0,
    "training.peak_learning_rate": None,
    "training.optimizer": "adam",
    "training.weight_decay": 0.0,
    "training.adam_beta1": 0.9,
    "training.adam_beta2": 0.98,
    "training.adam_epsilon": 1e-9,
    "training.clip_gradient_norm": None,
    "training.ema_decay": None,
    "training.label_smoothing": 0.0,
    "training.freeze": [],
    "parallel.tokens_per_device": None,
    "parallel.remat": "none",
    "parallel.loss_chunks": 1,
    "parallel.backend": "jit",
}
SIMPLEST = {
    "seed": 0,
    "dtype": "float64",
    "steps": 1,
    "vocabulary": 12,
    "pairs": 1,
    "pairs_in_a_row": 1,
    **_PAPER,
}


def generate(rng: np.random.Generator) -> Case:
    """Make a case."""

    def choice(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    schedule = choice("inverse_sqrt", "inverse_sqrt", "cosine", "linear", "constant", "wsd")
    by_peak, has_end = choice(True, False), schedule in ("cosine", "linear", "wsd")
    optimizer, shared = choice("adam", "adamw"), choice("all", "none", "source", "target")
    return SIMPLEST | {
        "seed": int(rng.integers(1 << 30)),
        "dtype": choice("float64", "float64", "float32", "float32", "bfloat16"),
        "steps": 50,
        "vocabulary": int(rng.integers(12, 41)),
        "pairs": int(rng.integers(2, 7)),
        "pairs_in_a_row": choice(1, 2, 3),
        "model.d_model": choice(8, 16),
        "model.num_heads": choice(1, 2, 4),
        "model.d_ff": choice(8, 12, 24),
        "model.num_encoder_layers": choice(1, 2),
        "model.num_decoder_layers": choice(1, 2),
        "model.norm_order": choice("post", "pre"),
        "model.norm": choice("layer", "layer", "rms"),
        "model.norm_epsilon": choice(1e-6, 1e-5),
        "model.feed_forward": choice("relu", "gelu", "gelu_tanh", "silu"),
        "model.attention_bias": choice(True, False),
        "model.output_bias": choice(True, False),
        "model.embedding_norm": choice(True, False, False),
        "model.position": choice("sinusoidal", "sinusoidal", "learned", "none"),
        "model.scale_embeddings": choice(True, False),
        "model.share_embeddings": shared == "all",
        "model.share_source_embedding": shared == "source",
        "model.share_target_embedding": shared == "target",
        "training.schedule": schedule,
        "training.schedule_steps": choice(50, 80) if has_end else None,
        "training.decay_fraction": choice(0.2, 0.5),
        "training.warmup_steps": choice(1, 4, 20),
        "training.learning_rate_factor": 1.0 if by_peak else choice(0.05, 0.2),
        "training.peak_learning_rate": choice(0.001, 0.01) if by_peak else None,
        "training.optimizer": optimizer,
        "training.weight_decay": choice(0.0, 0.01, 0.3) if optimizer == "adamw" else 0.0,
        "training.adam_beta1": choice(0.9, 0.5, 0.0),
        "training.adam_beta2": choice(0.98, 0.999, 0.9),
        "training.adam_epsilon": choice(1e-9, 1e-8, 1e-6),
        "training.clip_gradient_norm": choice(None, 0.3, 1.0),
        "training.ema_decay": choice(None, 0.9, 0.999),
        "training.label_smoothing": choice(0.0, 0.1, 0.3),
        "training.freeze": choice([], [], ["encoder"], ["decoder/layers/*_attention"], ["*norm*"]),
        "parallel.tokens_per_device": choice(None, LONGEST, 4 * LONGEST),
        "parallel.remat": choice("none", "dots", "layer"),
        "parallel.loss_chunks": choice(1, 2),
        "parallel.backend": choice("jit", "jit", "pmap"),
    }


def is_valid(case: Case) -> bool:
    """Return whether the fields of a case fit together."""
    shares = [case[name] for name in case if name.startswith("model.share_")]
    has_end = case["training.schedule"] in ("cosine", "linear", "wsd")
    end, warmup = case["training.schedule_steps"], case["training.warmup_steps"]
    peak = case["training.peak_learning_rate"]
    return (
        sum(shares) <= 1
        and case["model.d_model"] in (8, 16)
        and 4 % case["model.num_heads"] == 0
        and has_end == (end is not None)
        and (end is None or end * (1 - case["training.decay_fraction"]) >= warmup)
        and (peak is None or case["training.learning_rate_factor"] == 1)
        and (case["training.optimizer"] == "adamw" or case["training.weight_decay"] == 0)
    )


def sentences(case: Case) -> list[list[tuple[list[int], list[int]]]]:
    """Return the pairs of sentences of each step, which end with the id 1."""
    rng = np.random.default_rng(case["seed"])

    def sentence() -> list[int]:
        return [*rng.integers(3, case["vocabulary"], rng.integers(1, LONGEST)).tolist(), 1]

    return [[(sentence(), sentence()) for _ in range(case["pairs"])] for _ in range(case["steps"])]


def routes(case: Case) -> dict[str, list[Step]]:
    """Return the only comparison; PyTorch comes first, as it writes the initial parameters."""
    program = IN_FLOAT64 if case["dtype"] == "float64" else OURS
    return {f"pytorch in {case['dtype']}": [(PYTORCH, "train"), (program, "train")]}


def compare(case: Case, name: str, answers: list[Any]) -> Difference | None:
    """Compare the first step, and then all steps, with what roundings explain."""
    (reference, rounded), ours = answers
    if "error" in ours:
        return Difference("ours raises an error", ours["error"])
    if ours.keys() != reference.keys():
        return Difference("other parameters", f"{sorted(ours.keys() ^ reference.keys())}")
    for key in sorted(reference, key=lambda key: ORDER.index(key.split("/")[0])):
        expected = reference[key]
        if ours[key].shape != expected.shape:
            return Difference(f"another shape: {key}", f"{ours[key].shape}, {expected.shape}")
        bound = ROUNDINGS[case["dtype"]] * max(1, np.abs(expected).max(initial=0))
        bound += FARTHER * np.abs(rounded[key] - expected).max(initial=0)
        if key.endswith("key/bias") and not key.startswith("gradient"):
            bound += OF_KEY_BIASES
        error = np.abs(ours[key] - expected).max(initial=0)
        if not error <= bound:
            kind = key.split("/")[0]
            return Difference(f"another {kind}", f"{key} differs by {error:.2g}, above {bound:.2g}")
    return None


PART = Part(
    programs={
        OURS: "tests.against.training.ours",
        IN_FLOAT64: "tests.against.training.ours_in_float64",
        PYTORCH: "tests.against.training.pytorch",
    },
    generate=generate,
    routes=routes,
    compare=compare,
    simplest=SIMPLEST,
    is_valid=is_valid,
)
