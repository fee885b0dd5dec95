"""Small models of marian-nmt with random parameters, in files as marian-nmt writes them.

Nothing of the package is used here, so that programs of other environments can import this too.
"""

import gzip
import io
import json
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import yaml

BUNDLED = Path(__file__).parents[2] / "t2t_jax" / "data" / "bundled"
OPUS = {
    "bert-train-type-embeddings": True,
    "dec-cell-base-depth": 2,
    "dec-cell-high-depth": 1,
    "dec-depth": 2,
    "dim-emb": 16,
    "dim-rnn": 1024,
    "enc-depth": 2,
    "input-types": [],
    "layer-normalization": False,
    "lemma-dim-emb": 0,
    "right-left": False,
    "skip": False,
    "tied-embeddings": False,
    "tied-embeddings-all": True,
    "tied-embeddings-src": False,
    "transformer-aan-activation": "swish",
    "transformer-aan-depth": 2,
    "transformer-aan-nogate": False,
    "transformer-decoder-autoreg": "self-attention",
    "transformer-dim-ffn": 32,
    "transformer-ffn-activation": "swish",
    "transformer-ffn-depth": 2,
    "transformer-guided-alignment-layer": "last",
    "transformer-heads": 4,
    "transformer-no-projection": False,
    "transformer-postprocess": "dan",
    "transformer-postprocess-emb": "d",
    "transformer-preprocess": "",
    "transformer-tied-layers": [],
    "transformer-train-position-embeddings": False,
    "type": "transformer",
    "ulr": False,
    "ulr-dim-emb": 0,
    "version": "v1.9.0 ba94c5b9 2020-05-17 10:42:17 +0100",
}
"""The options of a model of OPUS-MT, but for its sizes."""
_SEPARATE = {"tied-embeddings-all": False, "tied-embeddings": True}
_PRE_NORM = {
    "version": "v1.11.0",
    "transformer-preprocess": "n",
    "transformer-postprocess": "da",
    "transformer-postprocess-top": "n",
}
OPTIONS: dict[str, dict[str, Any]] = {
    "opus": {},
    "pre-norm": _PRE_NORM,
    "separate": {**_SEPARATE, "transformer-ffn-activation": "relu"},
    "untied": {"tied-embeddings-all": False, "tied-embeddings-src": True, "output-omit-bias": True},
    "gelu": {"version": "v1.12.31", "transformer-ffn-activation": "gelu"},
    "old-gelu": {"transformer-ffn-activation": "gelu", "transformer-postprocess-emb": "nd"},
    "rms": {**_PRE_NORM, "transformer-preprocess": "r", "transformer-postprocess-top": "r"},
    "tied-layers": {"transformer-tied-layers": [1, 1], "transformer-decoder-dim-ffn": 32},
    "learned-positions": {"transformer-train-positions": True},
    "no-positions": {"transformer-disable-position-embeddings": True},
}
"""The options of each model that differ from those of `OPUS`."""


def options_of(name: str) -> dict[str, Any]:
    return {**OPUS, **OPTIONS[name]}


@cache
def real_pairs() -> tuple[list[str], list[str]]:
    """Sentences of the bundled corpus, and their translations."""
    texts = [gzip.decompress((BUNDLED / f"dev.{lang}.gz").read_bytes()) for lang in ("en", "de")]
    sources, targets = (text.decode().splitlines()[:60] for text in texts)
    return sources, targets


@cache
def splitter(side: int, size: int, own_ids: bool) -> bytes:
    """A SentencePiece model of one side; with the ids that marian-nmt gives, or with the usual."""
    model = io.BytesIO()
    ids = {"bos_id": -1, "eos_id": 0, "unk_id": 1} if own_ids else {}
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(real_pairs()[side]),
        model_writer=model,
        vocab_size=size,
        normalization_rule_name="identity",
        num_threads=1,
        minloglevel=2,
        **ids,
    )
    return model.getvalue()


def pieces_of(model: bytes) -> list[str]:
    processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    return [processor.id_to_piece(number) for number in range(processor.get_piece_size())]


def write_directory(directory: Path, name: str) -> None:
    """Write a model: "separate" has two SentencePiece vocabularies, others those of OPUS-MT."""
    directory.mkdir()
    if name == "separate":
        models = splitter(0, 200, True), splitter(1, 220, True)
        vocabularies = ["vocab.en.spm", "vocab.de.spm"]
        sizes = [200, 220]
    else:
        models = splitter(0, 200, False), splitter(1, 220, False)
        ordinary = {piece for model in models for piece in pieces_of(model)[3:]}
        table = ["</s>", "<unk>", ">>deu<<", "no", "~", *sorted(ordinary - {"no", "~"})]
        lines = [f"{_key(piece)}: {number}\n" for number, piece in enumerate(table)]
        (directory / "opus.vocab.yml").write_text("".join(lines), encoding="utf-8")
        vocabularies = ["opus.vocab.yml"] * 2
        sizes = [len(table)] * 2
    for file, model in zip(
        vocabularies if name == "separate" else ["source.spm", "target.spm"], models, strict=True
    ):
        (directory / file).write_bytes(model)
    settings = {
        "relative-paths": True,
        "models": ["opus.npz"],
        "vocabs": vocabularies,
        "beam-size": 6,
        "normalize": 1,
    }
    (directory / "decoder.yml").write_text(yaml.safe_dump(settings), encoding="utf-8")
    options = {**options_of(name), "dim-vocabs": sizes}
    write_npz(directory / "opus.npz", random_weights(options), options)


def write_npz(
    file: Path, weights: Mapping[str, np.ndarray], options: Mapping[str, Any] | None
) -> None:
    """Write parameters and options as marian-nmt does."""
    arrays = dict(weights)
    if options is not None:
        text = yaml.safe_dump(dict(options)).encode() + b"\0"
        arrays["special:model.yml"] = np.frombuffer(text, np.int8)
    np.savez(file, **arrays)


def _key(piece: str) -> str:
    """A subword as a key of YAML, in quotes only where it needs them."""
    return piece if piece.isalpha() or piece == "</s>" else json.dumps(piece, ensure_ascii=False)


def random_weights(options: Mapping[str, Any]) -> dict[str, np.ndarray]:
    """Parameters of every name and shape that a model with these options has."""
    rng = np.random.default_rng(0)
    weights = {
        name: (name.count("scale") + rng.normal(0, _deviation(name), shape)).astype(np.float32)
        for name, shape in _shapes(options)
    }
    if "decoder_ff_logit_out_b" in weights:  # so that searches come to an end
        weights["decoder_ff_logit_out_b"][0, 0] += 5
    return weights


def _deviation(name: str) -> float:
    """Layers are so different that a search finds other subwords for other sources."""
    if "emb" in name or "logit" in name:
        return 0.3
    return 0.1 if "bias" in name or "_b" in name else 0.4


def _shapes(options: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, int]]]:
    width, sizes = options["dim-emb"], options["dim-vocabs"]
    if options["tied-embeddings-all"] or options["tied-embeddings-src"]:
        yield "Wemb", (sizes[0], width)
    else:
        yield "encoder_Wemb", (sizes[0], width)
        yield "decoder_Wemb", (sizes[1], width)
    if not (options["tied-embeddings-all"] or options["tied-embeddings"]):
        yield "decoder_ff_logit_out_Wt", (sizes[1], width)
    if not options.get("output-omit-bias"):
        yield "decoder_ff_logit_out_b", (1, sizes[1])
    if options.get("transformer-train-positions"):
        yield "Wpos", (128, width)
    for stack in ("encoder", "decoder"):
        if "n" in options["transformer-postprocess-emb"]:
            yield from _norm_shapes(options, f"{stack}_emb", "_pre")
        if options.get("transformer-postprocess-top"):
            yield from _norm_shapes(options, f"{stack}_top", "")
        for layer in range(1, depth_of(stack, options) + 1):
            yield from _layer_shapes(options, f"{stack}_l{layer}")


def depth_of(stack: str, options: Mapping[str, Any]) -> int:
    """The number of layers of a stack that have parameters of their own."""
    tied = options["transformer-tied-layers"] if stack == "decoder" else []
    return max(tied, default=options[f"{stack[:3]}-depth"])


def _layer_shapes(options: Mapping[str, Any], place: str) -> Iterator[tuple[str, tuple[int, int]]]:
    width, inner = options["dim-emb"], options["transformer-dim-ffn"]
    suffix = "_pre" if options["transformer-preprocess"] else ""
    for attention in ("self", "context") if place.startswith("decoder") else ("self",):
        for letter in "qkvo":
            yield f"{place}_{attention}_W{letter}", (width, width)
            yield f"{place}_{attention}_b{letter}", (1, width)
        yield from _norm_shapes(options, f"{place}_{attention}_Wo", suffix)
    for number, shape in ((1, (width, inner)), (2, (inner, width))):
        yield f"{place}_ffn_W{number}", shape
        yield f"{place}_ffn_b{number}", (1, shape[1])
    yield from _norm_shapes(options, f"{place}_ffn_ffn", suffix)


def _norm_shapes(
    options: Mapping[str, Any], place: str, suffix: str
) -> Iterator[tuple[str, tuple[int, int]]]:
    if "r" in options["transformer-preprocess"]:
        yield f"{place}_rms_scale{suffix}", (1, options["dim-emb"])
        return
    for name in ("scale", "bias"):
        yield f"{place}_ln_{name}{suffix}", (1, options["dim-emb"])
