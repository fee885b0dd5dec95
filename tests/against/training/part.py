"""Training steps of PyTorch: losses, gradients and parameters of up to 50 steps.

Both programs train from the same parameters, on the same sentences, by the same settings. PyTorch
trains twice: in float64, as the reference, and in the dtype of the case, which says how far its
roundings lead away from the reference. In a case in float64, a rounding of the first parameters
says it: at high learning rates it grows a hundred thousand times in 50 steps. So only these cases
have more than ten steps.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from tests.against.part import OURS, Case, Difference, Fields, Part, Step, drawn, simplest_case

PROGRAMS = PYTORCH, IN_FLOAT64, _ = "pytorch", "ours in float64", OURS
LONGEST = 6
"""Tokens of the longest sentence."""
Result = dict[str, np.ndarray]
"""The results of a training: of each step the number of `tokens`, the learning `rate`, the `norm`
of the gradient and the mean `loss` and `nll`; and of each parameter its `gradient` in the first
step, its value after the `first` and the `last`, and its moving `average`."""
STEP = "loss", "nll", "tokens", "norm", "rate"
ORDER = "tokens", "rate", "gradient", "first", "norm", "loss", "nll", "last", "average"
"""The results in the order of their comparison, the causes first."""
ROUNDINGS = {"float64": 1e-12, "float32": 1e-6, "bfloat16": 2**-6}
"""Differences that a few roundings explain, as a share of the root mean square of the result. In
float64, 50 steps of two programs are mostly 1e-14 apart. In bfloat16 it is four roundings."""
FARTHER = 10.0
"""How many times as far from float64 this package may be as PyTorch in the same dtype, by the root
mean square. Both have about as many roundings. Adam makes full steps of tiny gradients, whose signs
may be roundings: these are as many in both programs, but not the same ones. In one of some hundred
cases, ours were 8 times as far."""

_FIELDS: Fields = {
    "seed": [0],
    "dtype": ["float64", "float64", "float64", "float32", "float32", "bfloat16"],
    "steps": [1, 50, 50, 50],
    "vocabulary": [12, 23, 40],
    "pairs": [1, 2, 4, 6],
    "pairs_in_a_row": [1, 2, 3],
    "model.d_model": [8, 16],
    "model.num_heads": [1, 2, 4],
    "model.d_ff": [8, 12, 24],
    **dict.fromkeys(("model.num_encoder_layers", "model.num_decoder_layers"), (1, 2)),
    "model.norm_order": ["post", "pre"],
    "model.norm": ["layer", "layer", "rms"],
    "model.norm_epsilon": [1e-6, 1e-5],
    "model.feed_forward": ["relu", "gelu", "gelu_tanh", "silu"],
    "model.attention_bias": [False, True],
    "model.output_bias": [False, True],
    "model.embedding_norm": [False, False, True],
    "model.position": ["none", "sinusoidal", "sinusoidal", "learned"],
    "model.scale_embeddings": [False, True],
    "model.share_embeddings": [True, False, False],
    "model.share_source_embedding": [False, True],
    "model.share_target_embedding": [False, True],
    "training.schedule": ["constant", "inverse_sqrt", "linear", "cosine", "wsd"],
    "training.decay_fraction": [0.1, 0.5],
    "training.warmup_steps": [1, 4, 20],
    "training.peak_learning_rate": [0.01, 0.001, None],
    "training.learning_rate_factor": [1.0, 0.05, 0.2],
    "training.weight_decay": [0.0, 0.01, 0.3],
    "training.adam_beta1": [0.9, 0.5, 0.0],
    "training.adam_beta2": [0.98, 0.9, 0.999, 0.99999],
    "training.adam_epsilon": [1e-9, 1e-8, 1e-6],
    "training.clip_gradient_norm": [None, 0.3, 1.0],
    "training.ema_decay": [0.9, 0.5, 0.999],
    "training.label_smoothing": [0.0, 0.1, 0.3],
    "training.freeze": [[], [], ["encoder"], ["decoder/layers/*_attention"], ["*norm*"]],
    "parallel.tokens_per_device": [None, LONGEST, 4 * LONGEST],
    "parallel.remat": ["none", "dots", "layer"],
    "parallel.loss_chunks": [1, 2],
    "parallel.backend": ["jit", "jit", "pmap"],
}
"""The values of each field of a case, the simplest one first."""


def generate(rng: np.random.Generator, _: int) -> Case:
    """Make a case."""
    case = drawn(rng, _FIELDS)
    if case["dtype"] != "float64":
        # At high learning rates roundings grow until losses differ as those of other parameters.
        case["steps"] = min(case["steps"], 10)
    if case["training.peak_learning_rate"] is not None:  # which sets what the factor would
        case["training.learning_rate_factor"] = 1.0
    case["model.share_target_embedding"] &= not case["model.share_source_embedding"]
    return case | {"seed": int(rng.integers(1 << 30))}


def results(logged: Sequence[Sequence[float]], **kinds: Result) -> Result:
    """Return a result of the numbers of each step, and of arrays by name for each kind."""
    arrays = {f"{kind}/{name}": array for kind, of in kinds.items() for name, array in of.items()}
    return arrays | dict(zip(STEP, np.array(logged, np.float64).T, strict=True))


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
    """Compare the results, kind by kind, up to what roundings explain."""
    (reference, rounded), ours = answers
    if ours.keys() != reference.keys():
        return Difference("other parameters", f"{sorted(ours.keys() ^ reference.keys())}")
    for kind in ORDER:
        keys = [key for key in reference if key.split("/")[0] == kind and _is_compared(key)]
        own, right, near = (
            np.concatenate([found[key].ravel() for key in keys])
            for found in (ours, reference, rounded)
        )
        bound = ROUNDINGS[case["dtype"]] * _root_mean_square(right)
        bound += FARTHER * _root_mean_square(near - right)
        error = _root_mean_square(own - right)
        if not error <= bound:
            worst = max(keys, key=lambda key: np.abs(ours[key] - reference[key]).max(initial=0))
            detail = f"{error:.2g}, above {bound:.2g}, most in {worst}"
            return Difference(f"another {kind}", detail)
    return None


def _is_compared(key: str) -> bool:
    """Return whether roundings of gradients leave a result alone.

    Biases of keys change no attention: their gradients are 0, and Adam divides the roundings of
    these by its epsilon. No other parameter has such gradients.
    """
    return key.startswith("gradient/") or not key.endswith("key/bias")


def _root_mean_square(numbers: np.ndarray) -> float:
    return float(np.sqrt(np.mean(numbers**2)))


PART = Part(
    programs={name: f"{__package__}.{name.replace(' ', '_')}" for name in PROGRAMS},
    generate=generate,
    routes=routes,
    compare=compare,
    simplest=simplest_case(_FIELDS),
    niceness=5,
)
