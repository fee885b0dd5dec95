"""Networks of the formats that models are imported from and exported to, with random options.

A case of a format of transformers begins with a model of transformers, or for Marian with one of
ours (`direction`). Cases of the other formats begin with a model of ours. Both programs compute the
logits of the same ids. The network then goes to the other side, changes there, and comes back: in
transformers by ten steps of training.
"""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from t2t_jax.config import Config
from t2t_jax.errors import UserError
from tests.against.part import OURS, Case, Difference, Part, Step

FOLDER = "tests.against.networks"
FORMULAS, ENGINE, THEIRS = "formulas", "ctranslate2", "transformers"
PEERS = {"safetensors": FORMULAS, "run": FORMULAS, "ctranslate2": ENGINE}
"""The program that reads a format, if it is not transformers."""
FORMATS = *PEERS, "marian", "m2m100", "mbart", "bart", "gpt2"
BEGIN, PAD, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
LANGUAGES = {"m2m100": ("eng_Latn", "deu_Latn"), "mbart": ("en_XX", "de_DE")}
TOLERANCE = 3e-6
"""Float32 computed in another order differs by up to 4e-7 of the largest logit here."""
FIRST_NORM = "other epsilon of a first norm"

_Options: TypeAlias = Mapping[str, Sequence[Any]]
_ACTIVATIONS = "gelu", "relu", "silu", "swish", "gelu_new"
_SEQ2SEQ: _Options = {
    "activation_function": _ACTIVATIONS,
    "scale_embedding": (True, False),
    "attention_dropout": (0.0, 0.3),
    "max_position_embeddings": (16, 24),
}
_THEIRS: Mapping[str, _Options] = {
    **dict.fromkeys(("m2m100", "mbart", "bart"), _SEQ2SEQ),
    "marian": {**_SEQ2SEQ, "share_encoder_decoder_embeddings": (False,)},
    "gpt2": {
        "activation_function": _ACTIVATIONS,
        "layer_norm_epsilon": (1e-5, 1e-6, 1e-3),
        "n_positions": (16, 24),
        "reorder_and_upcast_attn": (True,),
    },
}
"""Options of transformers that are imported, with their values."""
_REFUSED: Mapping[str, Sequence[tuple[str, Any]]] = {
    **dict.fromkeys(("marian", "mbart", "bart"), (("decoder_ffn_dim", 17),)),
    "m2m100": (("pad_token_id", 5), ("decoder_start_token_id", 1), ("decoder_ffn_dim", 17)),
    "gpt2": (("scale_attn_weights", False), ("scale_attn_by_inverse_layer_idx", True)),
}
"""Options of transformers that are refused, besides an activation."""
_REFUSED_ACTIVATION = "activation_function", "quick_gelu"
_PLAIN = "relu", "gelu", "gelu_tanh", "silu"
_OF_MARIAN: _Options = {
    "model.feed_forward": _PLAIN,
    "model.norm_order": ("post", "deep"),
    "model.norm_epsilon": (1e-6, 1e-5, 1e-3),
    "model.attention_bias": (True,),
    "model.output_bias": (True,),
    "model.scale_embeddings": (False,),
    "model.start_token": ("end", "padding"),
    "model.cross_heads": (1,),
    "model.encoder_heads": (1,),
}
_OF_ENGINE: _Options = {
    **_OF_MARIAN,
    "model.feed_forward": (*_PLAIN, "glu", "reglu", "geglu", "geglu_tanh", "swiglu"),
    "model.norm": ("rms",),
    "model.norm_order": ("pre", "deep"),
    "model.score_function": ("dot_product",),
    "model.position": ("sinusoidal_t2t", "learned", "none", "rotary", "alibi", "relative_bias"),
    "model.first_position": (2,),
    "model.rotary_scale": (2.0,),
    "model.rotary_base": (100.0,),
    "model.rotary_scaling": ("ntk",),
    "model.embedding_norm": (True,),
    "model.share_embeddings": (False,),
    "model.share_target_embedding": (True,),
    "model.share_source_embedding": (True,),
    "model.num_kv_heads": (1, 2),
    "model.d_k": (2, 4, 6),
}
_NOT_NEUTRAL = "model.first_position", "model.cross_heads", "model.encoder_heads"
"""Fields that `numpy_transformer` does not have."""
_OF_NEUTRAL: _Options = {
    "model.architecture": ("decoder_only",),
    **{option: values for option, values in _OF_ENGINE.items() if option not in _NOT_NEUTRAL},
    "model.prefix_attention": (True,),
    "model.score_function": ("dot_product", "additive"),
    "model.attention_window": (1, 2, 4),
    "model.query_key_norm": (True,),
    "model.parametrisation": ("mup",),
    "model.d_v": (2, 3, 4),
}
_OURS = dict.fromkeys(PEERS, _OF_NEUTRAL) | {"marian": _OF_MARIAN, "ctranslate2": _OF_ENGINE}

SIMPLEST: Case = {
    "format": "safetensors",
    "direction": "in",
    "seed": 0,
    "d_model": 8,
    "num_heads": 1,
    "d_ff": 4,
    "encoder_layers": 1,
    "decoder_layers": 1,
    "entries": 12,
    "source_entries": 0,
    "unused_rows": 0,
    "special": [0, 1, 2, 3],
    "start": END,
    "rows": 1,
    "source_length": 1,
    "target_length": 1,
    "is_padded": False,
    "file": "whole",
    "dtype": "float32",
    "options": [],
}
"""The simplest value of each field.

    direction       whether transformers ("in") or this package ("out") makes the model
    source_entries  entries of sources, where they have a vocabulary of their own
    unused_rows     rows of the embeddings beyond the vocabulary
    special         the ids of `<s>`, `<pad>`, `</s>` and `<unk>` in transformers
    start           the entry that a target begins with
    file            how transformers stores the weights: whole, in shards, or as pytorch_model.bin
    options         pairs of a field of config.json (in) or of our config (out), and its value
"""


def generate(rng: np.random.Generator) -> Case:
    """Make a case of one format."""

    def one_of(*values: Any) -> Any:
        return values[int(rng.integers(len(values)))]

    name = one_of(*FORMATS)
    is_out = name in PEERS or (name == "marian" and one_of(False, True))
    # Few sizes, as operations are compiled for each of them.
    sizes_of_heads = [(8, 1), (16, 2), (12, 3), (16, 4)]
    if name in ("mbart", "bart", "gpt2"):  # which have no sinusoids
        sizes_of_heads += [(15, 3)]
    d_model, heads = one_of(*sizes_of_heads)
    case = {
        **SIMPLEST,
        "format": name,
        "direction": "out" if is_out else "in",
        "seed": int(rng.integers(1 << 30)),
        "d_model": d_model,
        "num_heads": heads,
        "d_ff": one_of(5, 16),
        "encoder_layers": one_of(1, 1, 2),
        "decoder_layers": one_of(1, 1, 2),
        "entries": one_of(16, 33),
        "unused_rows": one_of(0, 0, 3),
        "special": [int(one) for one in rng.permutation(8)[:4]],
        "start": one_of(END, END, PAD, BEGIN),
        "rows": 3,
        "source_length": one_of(1, 7, 7),
        "target_length": one_of(1, 7, 7),
        "is_padded": one_of(True, True, False),
    }
    if not is_out:
        case["file"] = one_of("whole", "shards", "bin")
        case["dtype"] = one_of("float32", "bfloat16", "float16")
    elif PEERS.get(name) == FORMULAS:
        case["dtype"] = one_of("float32", "bfloat16")
    if is_out or name == "marian":
        case["source_entries"] = one_of(0, 0, 25)
    if name in LANGUAGES:
        case["start"] = one_of(case["start"], LANGUAGES[name][1])
    if name == "m2m100":  # whose positions begin after the id of padding
        case |= {"special": [0, 1, 2, 3], "start": one_of(END, BEGIN, LANGUAGES[name][1])}
    for option, values in (_OURS if is_out else _THEIRS)[name].items():
        larger = {**case, "options": [*case["options"], [option, one_of(*values)]]}
        if rng.random() < 0.4 and is_valid(larger):
            case = larger
    if not is_out and rng.random() < 0.05:
        case["options"].append(list(one_of(_REFUSED_ACTIVATION, *_REFUSED[name])))
    return case


def our_fields(case: Case) -> dict[str, Any]:
    """Return the fields of our config."""
    options = dict(case["options"])
    fields = {
        "model.d_model": case["d_model"],
        "model.num_heads": case["num_heads"],
        "model.d_ff": case["d_ff"],
        "model.num_decoder_layers": case["decoder_layers"],
        "model.max_positions": 32,
    }
    if options.get("model.architecture") != "decoder_only":
        fields["model.num_encoder_layers"] = case["encoder_layers"]
    if case["source_entries"]:
        fields["model.share_embeddings"] = False
        fields["model.source_vocab_size"] = case["source_entries"]
    if case["format"] == "marian" and case["source_entries"]:
        fields["model.share_target_embedding"] = True
    if case["format"] == "ctranslate2" and "model.d_k" in options:
        fields["model.d_v"] = options["model.d_k"]
    return fields | options


def is_valid(case: Case) -> bool:
    """Return whether the programs take a case."""
    counts = "encoder_layers", "decoder_layers", "rows", "num_heads", "d_ff"
    lengths = "source_length", "target_length"
    if case["format"] != "marian" and (case["direction"] == "out") != (case["format"] in PEERS):
        return False
    if case["direction"] == "out":
        try:
            Config().replace(our_fields(case))
        except UserError:
            return False
    return (
        (case["format"] != "m2m100" or (case["special"][1:2] == [1] and case["start"] != PAD))
        and len(set(case["special"])) == len(SIMPLEST["special"])
        and min(case[name] for name in (*counts, *lengths)) > 0
        and case["d_model"] % case["num_heads"] == 0
        and min(sizes(case)) >= SIMPLEST["entries"]
    )


def is_refused(case: Case) -> bool:
    """Return whether a case has an option that an import refuses."""
    refused = [_REFUSED_ACTIVATION, *_REFUSED.get(case["format"], ())]
    return any(tuple(pair) in refused for pair in case["options"])


def inputs(case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of the sources and of the targets, in the order of the side that begins."""
    rng = np.random.default_rng(case["seed"])
    found: list[list[list[int]]] = []
    is_theirs = case["direction"] == "in"
    special = case["special"][1:3] if is_theirs else [0, 1, 2]
    for size, longest in zip(
        sizes(case), (case["source_length"], case["target_length"]), strict=True
    ):
        ids = [number for number in range(size) if number not in special]
        least = 1 if case["is_padded"] else longest
        lengths = rng.integers(least, longest + 1, case["rows"])
        rows = [rng.choice(ids, length).tolist() for length in lengths]
        found.append(rows if is_theirs else [[*row, 1] for row in rows])
    return found[0], found[1]


def renamed(case: Case, orders: Sequence[Sequence[Any]]) -> list[list[list[Any]]]:
    """Return `inputs` by other ids or by names, given those of all source and target entries."""
    both = zip(orders, inputs(case), strict=True)
    return [[[order[one] for one in row] for row in side] for order, side in both]


def padded(rows: Sequence[Sequence[int]], filler: int, least: int = 0) -> np.ndarray:
    """Return rows as an array of at least so many columns."""
    longest = max(least, *map(len, rows))
    return np.array([[*row, *[filler] * (longest - len(row))] for row in rows])


def sizes(case: Case) -> tuple[int, int]:
    """Return the numbers of entries of sources and of targets."""
    return case["source_entries"] or case["entries"], case["entries"]


def names(case: Case) -> list[list[str]]:
    """Return the names of the entries of sources and of targets of the side that begins."""
    special = case["special"] if case["direction"] == "in" else [2, 0, 1, 3]
    named = dict(zip(special, (BEGIN, PAD, END, UNKNOWN), strict=True))
    languages = LANGUAGES.get(case["format"], ())
    numbers = [range(size - len(languages)) for size in sizes(case)]
    return [[*(named.get(one, f"w{one}") for one in row), *languages] for row in numbers]


def splitter(entries: Sequence[str]) -> bytes:
    """Return a SentencePiece model with some entries."""
    model = sentencepiece_model_pb2.ModelProto()
    kinds = {BEGIN: 3, PAD: 3, END: 3, UNKNOWN: 2}
    for name in entries:
        model.pieces.add(piece=name, score=-1.0, type=kinds.get(name, 1))
    for kind, name in zip(("bos", "pad", "eos", "unk"), kinds, strict=True):
        setattr(model.trainer_spec, f"{kind}_id", entries.index(name))
    return bytes(model.SerializeToString())


def drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return random numbers. Their sizes differ much, so that epsilons and activations count."""
    is_scale = name.endswith("scale") or ("norm" in name and name.endswith("weight"))
    is_scale |= ".ln_" in name and name.endswith("weight")
    numbers = rng.normal(0, 0.25, shape) + is_scale
    size = rng.uniform(-0.5, 0.7) if len(shape) > 1 else rng.uniform(-2, 0.3)
    return (10**size * numbers).astype(np.float32)


def routes(case: Case) -> Mapping[str, Sequence[Step]]:
    """Return the comparisons of a format."""
    name = case["format"]
    peer = PEERS.get(name, THEIRS)
    if is_refused(case):
        return {f"{name}, refused": [(peer, "make"), (OURS, "refusal")]}
    back = [(peer, "trained"), (OURS, "trained")]
    if case["direction"] == "in":
        into: list[Step] = [(peer, "make"), (OURS, "imported")]
        out = [*into, (peer, "exported")]
        return {
            f"{name}, imported": into,
            f"{name}, exported": out,
            f"{name}, trained": [*out, *back],
        }
    out = [(OURS, "make"), (peer, "exported")]
    found: dict[str, Sequence[Step]] = {f"{name}, ours": out}
    return found if peer == ENGINE else {**found, f"{name}, ours trained": [*out, *back]}


def compare(case: Case, name: str, answers: Sequence[Any]) -> Difference | None:
    """Compare the logits of the last two steps."""
    if name.endswith("refused"):
        return None if answers[-1] else Difference("an option is not refused", "")
    first, last = (np.asarray(answer, np.float64) for answer in answers[-2:])
    if case["format"] == "ctranslate2":
        targets = np.concatenate(inputs(case)[1])
        first = first[np.arange(len(targets)), targets]
    if first.shape != last.shape:
        return Difference("other shapes", f"{first.shape} and {last.shape}")
    error = np.abs(first - last).max() / max(1.0, np.abs(first).max())
    if error <= TOLERANCE:
        return None
    options = dict(case["options"])
    epsilon = options.get("model.norm_epsilon", 1e-6)
    has_other = case["format"] == ENGINE and options.get("model.norm_order") == "deep"
    if name.startswith("marian, ours"):
        has_other, epsilon = True, max(epsilon, 1e-5)  # which is that of transformers
    # The variance of the input of a first norm is rarely below 1/15 here.
    if has_other and error <= 30 * epsilon:
        return Difference(FIRST_NORM, f"{error:.2g} of the largest, with the epsilon {epsilon:g}")
    return Difference("other logits", f"{error:.2g} of the largest; {first[0]} and {last[0]}"[:400])


PART = Part(
    programs={
        OURS: f"{FOLDER}.ours",
        **{name: f"{FOLDER}.{name}" for name in (FORMULAS, ENGINE, THEIRS)},
    },
    generate=generate,
    routes=routes,
    compare=compare,
    simplest=SIMPLEST,
    documented={FIRST_NORM: "the epsilon of the first norm of a stack"},
    is_valid=is_valid,
)
