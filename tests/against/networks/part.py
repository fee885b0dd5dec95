"""Networks of the formats that models are imported from and exported to, with random options.

A case of a format of transformers begins with a model of transformers, or for Marian with one of
ours (`direction`). Cases of the other formats begin with a model of ours. Both programs compute the
logits of the same ids. From transformers the network comes back after ten steps of training.
"""

from collections.abc import Mapping, Sequence
from dataclasses import Field, fields
from itertools import permutations
from types import SimpleNamespace
from typing import Any, Literal, get_args, get_origin

import numpy as np
from sentencepiece import sentencepiece_model_pb2

from t2t_jax.config import Config, DecoderOnlyConfig, EncoderDecoderConfig, tables
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange.formats import implementation
from tests.against.part import OURS, Case, Difference, Part, Step

FORMULAS, ENGINE, THEIRS = "formulas", "ctranslate2", "transformers"
PEERS = {"safetensors": FORMULAS, "run": FORMULAS, "ctranslate2": ENGINE}
"""The program that reads a format, if it is not transformers."""
SEQ2SEQ = "m2m100", "mbart", "bart"
FORMATS = *PEERS, "marian", *SEQ2SEQ, "gpt2"
BEGIN, PAD, END, UNKNOWN = "<s>", "<pad>", "</s>", "<unk>"
LANGUAGES = {"m2m100": ("eng_Latn", "deu_Latn"), "mbart": ("en_XX", "de_DE")}
TOLERANCE = 3e-6
"""Float32 computed in another order differs by up to 4e-7 of the largest logit here."""
FIRST_NORM = "other epsilon of a first norm"

_THEIRS: Mapping[str, Sequence[Any]] = {
    "activation_function": ("gelu", "relu", "silu", "swish", "gelu_new"),
    "scale_embedding": (True, False),
    "max_position_embeddings": (16, 24),
    "share_encoder_decoder_embeddings": (False,),
    "layer_norm_epsilon": (1e-5, 1e-6, 1e-3),
}
"""Options of transformers that are imported, with their values. All programs ignore an option that
a format does not have."""
_NUMBERS: Mapping[str, Sequence[Any]] = {
    "norm_epsilon": (1e-6, 1e-5, 1e-3),
    "first_position": (2,),
    "rotary_scale": (2.0,),
    "rotary_base": (100.0,),
    "num_kv_heads": (1, 2),
    **dict.fromkeys(("cross_heads", "encoder_heads"), (1,)),
    "attention_window": (1, 2, 4),
    **dict.fromkeys(("d_k", "d_v"), (2, 3, 4, 6)),
}
"""Numbers in the section `model` of our config, with their values."""


def _our_values(field: Field[Any]) -> Sequence[Any]:
    """Return the values of a number, a switch or a name in the section `model` of our config."""
    is_name = get_origin(field.type) is Literal and field.metadata.get("exported", True)
    names = get_args(field.type) if is_name else tables.TABLES.get(field.name, ())
    switch = [not field.default] if field.type is bool else []
    return *_NUMBERS.get(field.name, ()), *names, *switch


_MODEL_FIELDS = *fields(EncoderDecoderConfig), *fields(DecoderOnlyConfig)
_OURS = {f"model.{one.name}": values for one in _MODEL_FIELDS if (values := _our_values(one))}
"""Options of our config, with their values. A format gets those that it declares to carry."""
_NOT_OF_FORMULAS = "model.first_position", "model.cross_heads", "model.encoder_heads"
"""Fields that `numpy_transformer` does not have. It has the parametrisation "complete" only where
both stacks have one depth."""

_FIELDS: Mapping[str, tuple[Any, Sequence[Any]]] = {
    "format": ("safetensors", FORMATS),
    "direction": ("in", ("in", "out")),
    "seed": (0, range(1 << 30)),
    "head_size": (8, (4, 5)),
    "num_heads": (1, (1, 2, 3, 4)),
    "d_ff": (4, (5, 16)),
    **dict.fromkeys(("num_encoder_layers", "num_decoder_layers"), (1, (1, 1, 2))),
    "entries": (12, (16, 33)),
    "source_entries": (0, (0, 0, 25)),
    "unused_rows": (0, (0, 0, 3)),
    "special": ([0, 1, 2, 3], [[*ids] for ids in permutations(range(8), 4)]),
    "start": (END, (END, PAD, BEGIN, "deu_Latn", "de_DE")),
    "rows": (1, (3,)),
    **dict.fromkeys(("source_length", "target_length"), (1, (1, 7, 7))),
    "is_padded": (False, (True, True, False)),
    "dtype": ("float32", ("float32", "bfloat16", "float16")),
}
"""The simplest value of each field of a case but `options`, and the values to choose from.

    direction       for Marian, whether transformers ("in") or this package ("out") makes the model
    source_entries  entries of sources, where they have a vocabulary of their own
    unused_rows     rows of the embeddings beyond the vocabulary
    special         the ids of `<s>`, `<pad>`, `</s>` and `<unk>` in transformers
    start           the entry that a target begins with
    options         pairs of a field of config.json (in) or of our config (out), and its value
"""
SIMPLEST: Case = {**{name: least for name, (least, _) in _FIELDS.items()}, "options": []}


def generate(rng: np.random.Generator, index: int) -> Case:
    """Make a case of one format. A field or an option that does not fit the others is left out."""
    case = {**SIMPLEST, "format": FORMATS[index % len(FORMATS)]}
    for name, (_, values) in [*_FIELDS.items()][1:]:
        larger = {**case, name: values[int(rng.integers(len(values)))]}
        case = larger if is_valid(larger) else case
    for option, values in (_OURS if is_ours(case) else _THEIRS).items():
        pair = [option, values[int(rng.integers(len(values)))]]
        larger = {**case, "options": [*case["options"], pair]}
        case = larger if rng.random() < 0.4 and is_valid(larger) else case
    return case


def is_ours(case: Case) -> bool:
    """Return whether a case begins with a model of this package.

    Cases of unused rows begin with a model of transformers.
    """
    is_out = case["format"] in PEERS or (case["format"], case["direction"]) == ("marian", "out")
    return is_out and not case["unused_rows"]


def has_other_norms(case: Case) -> bool:
    """Return whether an export of our model has another epsilon in the first norm of each stack."""
    is_deep = ["model.norm_order", "deep"] in case["options"]
    return is_ours(case) and (case["format"] == "marian" or (case["format"] == ENGINE and is_deep))


def our_fields(case: Case) -> dict[str, Any]:
    """Return the fields of our config."""
    options = dict(case["options"])
    encoder = [] if "model.architecture" in options else ["num_encoder_layers"]
    same = "num_heads", "d_ff", "num_decoder_layers", *encoder
    fields = {f"model.{name}": case[name] for name in same}
    fields |= {"model.d_model": case["num_heads"] * case["head_size"], "model.max_positions": 32}
    if case["source_entries"]:
        fields["model.source_vocab_size"] = case["source_entries"]
        fields["model.share_embeddings"] = False
        fields["model.share_target_embedding"] = case["format"] == "marian"
    if case["format"] == "ctranslate2":
        fields["model.d_v"] = options.get("model.d_k")
    return fields | options


def is_valid(case: Case) -> bool:
    """Return whether the programs take a case.

    A format declares the fields of our config that it carries, with their values.
    """
    name, special = case["format"], case["special"]
    if len(special) != len(SIMPLEST["special"]) or min(sizes(case)) < SIMPLEST["entries"]:
        return False
    if not is_ours(case):
        return (
            (name in ("mbart", "bart", "gpt2") or case["num_heads"] * case["head_size"] % 2 == 0)
            and (name == "marian" or not case["source_entries"])
            and (name in SEQ2SEQ or not case["unused_rows"])
            and (name != "m2m100" or (special[1] == 1 and case["start"] != PAD))
            and case["start"] in names(case)[1]
        )
    # It imports JAX, which the other programs do without.
    from t2t_jax.extras.interchange.carried import refuse_other_models

    form = SimpleNamespace(carried=implementation(name).carried, VOCABULARIES=object)
    try:
        config = Config().replace(our_fields(case))
        refuse_other_models(name, form, SimpleNamespace(config=config, vocabulary=None))
    except UserError:
        return False
    is_neutral = PEERS.get(name) == FORMULAS
    others = _NOT_OF_FORMULAS if is_neutral or has_other_norms(case) else ()
    return case["dtype"] in ("float32", "bfloat16" if is_neutral else "float32") and not any(
        option in others or value == "complete" for option, value in case["options"]
    )


def inputs(case: Case) -> tuple[list[list[int]], ...]:
    """Return the ids of the sources and of the targets, in the order of the side that begins."""
    rng = np.random.default_rng(case["seed"])
    special, end = ([0, 1, 2], [1]) if is_ours(case) else (case["special"][1:3], [])

    def drawn_rows(size: int, longest: int) -> list[list[int]]:
        ids = [number for number in range(size) if number not in special]
        least = min(1, longest) if case["is_padded"] else longest
        lengths = rng.integers(least, longest + 1, case["rows"])
        return [[*rng.choice(ids, length).tolist(), *end] for length in lengths]

    source_length = case["source_length"] if case["format"] != "gpt2" else 0  # without sources
    return tuple(map(drawn_rows, sizes(case), (source_length, case["target_length"])))


def renamed(case: Case, orders: Sequence[Sequence[Any]]) -> list[list[list[Any]]]:
    """Return `inputs` by other ids or by names, given those of all source and target entries."""
    both = zip(orders, inputs(case), strict=True)
    return [[[order[one] for one in row] for row in side] for order, side in both]


def sizes(case: Case) -> tuple[int, int]:
    """Return the numbers of entries of sources and of targets."""
    return case["source_entries"] or case["entries"], case["entries"]


def names(case: Case) -> list[list[str]]:
    """Return the names of the entries of sources and of targets of the side that begins."""
    special = [2, 0, 1, 3] if is_ours(case) else case["special"]
    # Special ids are below 8.
    languages = dict(zip((8, 9), LANGUAGES.get(case["format"], ()), strict=False))
    named = dict(zip(special, (BEGIN, PAD, END, UNKNOWN), strict=True)) | languages
    return [[named.get(one, f"w{one}") for one in range(size)] for size in sizes(case)]


def splitter(entries: Sequence[str]) -> bytes:
    """Return a SentencePiece model with some entries."""
    kinds = {BEGIN: 3, PAD: 3, END: 3, UNKNOWN: 2}
    pieces = [{"piece": name, "score": -1.0, "type": kinds.get(name, 1)} for name in entries]
    special = zip(("bos_id", "pad_id", "eos_id", "unk_id"), kinds, strict=True)
    ids = {field: entries.index(name) for field, name in special}
    model = sentencepiece_model_pb2.ModelProto(pieces=pieces, trainer_spec=ids)
    return bytes(model.SerializeToString())


def drawn(rng: np.random.Generator, name: str, shape: tuple[int, ...]) -> np.ndarray:
    """Return random numbers. Their sizes differ much, so that epsilons and activations count."""
    is_scale = ("norm" in name or ".ln_" in name) and not name.endswith("bias")
    size = rng.uniform(-0.5, 0.7) if len(shape) > 1 else rng.uniform(-2, 0.3)
    return (10**size * (rng.normal(0, 0.25, shape) + is_scale)).astype(np.float32)


def routes(case: Case) -> Mapping[str, Sequence[Step]]:
    """Return the comparisons of a format."""
    peer = PEERS.get(case["format"], THEIRS)
    into = (peer, "make"), (OURS, "imported")
    made = [(OURS, "make")] if is_ours(case) else into
    explained = [(FORMULAS, "with_first_norms")] if has_other_norms(case) else []
    out = *made, *explained, (peer, "exported")
    found = {"ours": out} if is_ours(case) else {"imported": into, "exported": out}
    if peer == THEIRS:
        name = "ours trained" if is_ours(case) else "trained"
        found[name] = *out, (peer, "trained"), (OURS, "trained")
    return {f"{case['format']}, {name}": steps for name, steps in found.items()}


def compare(case: Case, name: str, answers: Sequence[Any]) -> Difference | None:
    """Compare the logits of the last two steps.

    Where an export has other first norms, its logits are those of `formulas.with_first_norms`.
    """
    *others, last = (np.asarray(answer, np.float64) for answer in answers)
    if case["format"] == "ctranslate2":
        targets = np.concatenate(inputs(case)[1])
        others = [other[np.arange(len(targets)), targets] for other in others]
    compared = {"other logits": others[-1]}
    if name.endswith("ours") and has_other_norms(case):
        compared[FIRST_NORM] = others[0]
    for kind, other in compared.items():
        if other.shape != last.shape:
            return Difference("other shapes", f"{other.shape} and {last.shape}")
        error = np.abs(other - last).max() / max(1.0, np.abs(other).max())
        if not error <= TOLERANCE:
            detail = f"{error:.2g} of the largest; {other[0]} and {last[0]}"[:400]
            return Difference(kind, detail)
    return None


PART = Part(
    programs={name: f"{__package__}.{name}" for name in (OURS, FORMULAS, ENGINE, THEIRS)},
    generate=generate,
    routes=routes,
    compare=compare,
    simplest=SIMPLEST,
    documented={FIRST_NORM: "the epsilon of the first norm of a stack"},
    is_valid=is_valid,
)
