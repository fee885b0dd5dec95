"""Networks of the formats that models are imported from and exported to, with random options.

A case of a format of transformers begins with a model of transformers, or for Marian with one of
ours (`direction`). Cases of the other formats begin with a model of ours. Both programs compute the
logits of the same ids. The network then goes to the other side, trains there, and comes back.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from t2t_jax.config import Config
from t2t_jax.errors import UserError
from tests.against.part import OURS, Case, Difference, Part, Step

FOLDER = "tests.against.networks"
NEUTRAL, ENGINE, THEIRS = "torch", "ctranslate2", "transformers"
PEERS = {"safetensors": NEUTRAL, "run": NEUTRAL, "ctranslate2": ENGINE}
"""The program that reads a format, if it is not transformers."""
FORMATS = *PEERS, "marian", "m2m100", "mbart", "bart", "gpt2"
BEGIN, PAD, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
LANGUAGES = {"m2m100": ("eng_Latn", "deu_Latn"), "mbart": ("en_XX", "de_DE")}
MOST_POSITIONS = 16
TOLERANCE = 2e-4
"""Float32 computed in another order differs by less than 1e-4 of the largest logit in these
networks. GELU and its approximation differ by more."""

_SEQ2SEQ: Mapping[str, Sequence[Any]] = {
    "activation_function": ("gelu", "relu", "silu", "swish", "gelu_new"),
    "scale_embedding": (True, False),
    "attention_dropout": (0.0, 0.3),
    "max_position_embeddings": (MOST_POSITIONS, 24),
}
_OPTIONS: Mapping[str, Mapping[str, Sequence[Any]]] = {
    "marian": {**_SEQ2SEQ, "share_encoder_decoder_embeddings": (True, False)},
    "m2m100": _SEQ2SEQ,
    "mbart": _SEQ2SEQ,
    "bart": _SEQ2SEQ,
    "gpt2": {
        "activation_function": ("gelu", "relu", "silu", "swish", "gelu_new"),
        "layer_norm_epsilon": (1e-5, 1e-6, 1e-3),
        "n_positions": (MOST_POSITIONS, 24),
        "reorder_and_upcast_attn": (True,),
    },
}
"""Options of transformers that are imported, with their values."""
_REFUSED: Mapping[str, Sequence[tuple[str, Any]]] = {
    **dict.fromkeys(
        ("marian", "m2m100", "mbart", "bart"),
        (("activation_function", "quick_gelu"), ("decoder_ffn_dim", 17)),
    ),
    "gpt2": (
        ("activation_function", "quick_gelu"),
        ("scale_attn_weights", False),
        ("scale_attn_by_inverse_layer_idx", True),
        ("tie_word_embeddings", False),
    ),
}
"""Options of transformers that are refused."""
_OF_MARIAN: Mapping[str, Sequence[Any]] = {
    "model.feed_forward": ("relu", "gelu", "gelu_tanh", "silu"),
    "model.norm_order": ("post", "deep"),
    "model.norm_epsilon": (1e-6, 1e-5, 1e-3),
    "model.attention_bias": (False, True),
    "model.output_bias": (False, True),
    "model.scale_embeddings": (True, False),
    "model.start_token": ("begin", "end", "padding"),
    "model.share_target_embedding": (True,),
    "model.cross_heads": (1,),
    "model.encoder_heads": (1,),
}
_OF_ENGINE: Mapping[str, Sequence[Any]] = {
    **_OF_MARIAN,
    "model.feed_forward": (
        *_OF_MARIAN["model.feed_forward"],
        *("glu", "reglu", "geglu", "geglu_tanh", "swiglu"),
    ),
    "model.norm": ("layer", "rms"),
    "model.norm_order": ("post", "pre", "deep"),
    "model.score_function": ("scaled_dot_product", "dot_product"),
    "model.position": (
        *("sinusoidal", "sinusoidal_t2t", "learned", "none"),
        *("rotary", "alibi", "relative_bias"),
    ),
    "model.first_position": (0, 2),
    "model.rotary_scale": (1.0, 2.0),
    "model.rotary_base": (10_000.0, 100.0),
    "model.rotary_scaling": ("linear", "ntk"),
    "model.embedding_norm": (False, True),
    "model.share_target_embedding": (False, True),
    "model.share_source_embedding": (False, True),
    "model.num_kv_heads": (1, 2),
    "model.d_k": (2, 4, 6),
}
_OF_NEUTRAL: Mapping[str, Sequence[Any]] = {
    **_OF_ENGINE,
    "model.architecture": ("encoder_decoder", "decoder_only"),
    "model.prefix_attention": (True,),
    "model.score_function": ("scaled_dot_product", "dot_product", "additive"),
    "model.attention_window": (1, 2, 4),
    "model.query_key_norm": (False, True),
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
    heads = one_of(1, 2, 4)
    whole = "float32"
    case = {
        "format": name,
        "direction": "out" if is_out else "in",
        "seed": int(rng.integers(1 << 30)),
        "d_model": heads * one_of(*(8, 10, 16) if heads < 4 else (4, 6, 8)),
        "num_heads": heads,
        "d_ff": int(rng.integers(1, 40)),
        "encoder_layers": one_of(1, 1, 2),
        "decoder_layers": one_of(1, 1, 2),
        "entries": int(rng.integers(12, 60)),
        "source_entries": one_of(0, 0, int(rng.integers(12, 60))),
        "unused_rows": one_of(0, 0, 3),
        "special": [int(one) for one in rng.permutation(8)[:4]],
        "start": one_of(END, END, PAD, BEGIN),
        "rows": int(rng.integers(1, 5)),
        "source_length": int(rng.integers(1, 9)),
        "target_length": int(rng.integers(1, 9)),
        "is_padded": bool(rng.random() < 0.7),
        "file": "whole" if is_out else one_of("whole", "shards", "bin"),
        "dtype": one_of(whole, "bfloat16", *("float16",) * (not is_out)),
        "options": [],
    }
    if name in ("ctranslate2", "marian") and is_out:
        case["dtype"] = whole
    if not (is_out or name == "marian"):
        case["source_entries"] = 0
    for option, values in (_OURS if is_out else _OPTIONS)[name].items():
        larger = {**case, "options": [*case["options"], [option, one_of(*values)]]}
        if rng.random() < 0.4 and is_valid(larger):
            case = larger
    if not is_out and rng.random() < 0.05:
        case["options"].append(list(one_of(*_REFUSED[name])))
    return case


def our_fields(case: Case) -> dict[str, Any]:
    """Return the fields of our config."""
    options = dict(case["options"])
    fields = {
        "model.d_model": case["d_model"],
        "model.num_heads": case["num_heads"],
        "model.d_ff": case["d_ff"],
        "model.num_decoder_layers": case["decoder_layers"],
        "model.max_positions": 2 * MOST_POSITIONS,
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
    layers = case["encoder_layers"], case["decoder_layers"], case["rows"], case["num_heads"]
    begins = {"marian": ("in", "out"), **dict.fromkeys(PEERS, ("out",))}
    if case["direction"] not in begins.get(case["format"], ("in",)):
        return False
    if case["direction"] == "out":
        try:
            Config().replace(our_fields(case))
        except UserError:
            return False
    return (
        len(set(case["special"])) == len(SIMPLEST["special"])
        and min(*layers, case["source_length"], case["target_length"], case["d_ff"]) > 0
        and case["d_model"] % case["num_heads"] == 0
        and case["entries"] >= SIMPLEST["entries"] <= (case["source_entries"] or 12)
    )


def is_refused(case: Case) -> bool:
    """Return whether a case has an option that an import refuses."""
    return any(tuple(pair) in _REFUSED.get(case["format"], ()) for pair in case["options"])


def inputs(case: Case) -> tuple[list[list[int]], list[list[int]]]:
    """Return the ids of the sources and of the targets, in the order of the side that begins."""
    rng = np.random.default_rng(case["seed"])
    found: list[list[list[int]]] = []
    is_theirs = case["direction"] == "in"
    special = case["special"][1:3] if is_theirs else [0, 1, 2]
    sizes = case["source_entries"] or case["entries"], case["entries"]
    for size, longest in zip(sizes, (case["source_length"], case["target_length"]), strict=True):
        ids = [number for number in range(size) if number not in special]
        least = 1 if case["is_padded"] else longest
        lengths = rng.integers(least, longest + 1, case["rows"])
        rows = [rng.choice(ids, length).tolist() for length in lengths]
        found.append(rows if is_theirs else [[*row, 1] for row in rows])
    return found[0], found[1]


def padded(rows: Sequence[Sequence[int]], filler: int) -> np.ndarray:
    """Return rows as an array."""
    longest = max(map(len, rows))
    return np.array([[*row, *[filler] * (longest - len(row))] for row in rows])


def names(case: Case, size: int) -> list[str]:
    """Return the names of the entries of the side that begins."""
    special = case["special"] if case["direction"] == "in" else [2, 0, 1, 3]
    found = [f"w{number}" for number in range(size)]
    for number, name in zip(special, (BEGIN, PAD, END, UNKNOWN), strict=True):
        found[number] = name
    languages = LANGUAGES.get(case["format"], ())
    return [*found[: size - len(languages)], *languages]


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
    """Return random numbers. The scales of norms differ much, so that an epsilon counts."""
    is_scale = name.endswith("scale") or ("norm" in name and name.endswith("weight"))
    is_scale |= ".ln_" in name and name.endswith("weight")
    scale = 10 ** rng.uniform(-2, 0.3) if is_scale else 1
    return (scale * (rng.normal(0, 0.25, shape) + is_scale)).astype(np.float32)


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
    return Difference("other logits", f"{error:.2g} of the largest; {first[0]} and {last[0]}"[:400])


PART = Part(
    programs={
        OURS: f"{FOLDER}.ours",
        **{name: f"{FOLDER}.{name}" for name in (NEUTRAL, ENGINE, THEIRS)},
    },
    generate=generate,
    routes=routes,
    compare=compare,
    simplest=SIMPLEST,
    is_valid=is_valid,
)
