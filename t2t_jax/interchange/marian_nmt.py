"""A reader of models of marian-nmt, the toolkit in C++: an `.npz` file, and vocabularies beside it.

    DIR/model.npz              the parameters, and among them the model's options in YAML
    DIR/decoder.yml            names model and vocabularies; or DIR/model.npz.decoder.yml
    DIR/vocab.spm              a vocabulary that is a SentencePiece model, or else
    DIR/vocab.yml              a table of the id of each subword, together with
    DIR/source.spm, target.spm     the models that split text into these subwords

The imported model computes what marian-nmt computes in training; `transformer.h` of marian-nmt has
the names and the order of everything. Three things differ in marian-nmt:

- It has no padding, and a target begins with an embedding of zeros. In this package padding is the
  first entry of every vocabulary. Its embedding is set to zeros, and its bias in the output is so
  low that it never takes any probability.
- Before version 1.12.3, its gelu is x sigmoid(1.702 x). That is silu with other factors on the
  matrices around it.
- Before version 1.11, its pre-norm layers do not normalise keys and values. Such models are
  refused.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from jaxtyping import Float32, Shaped

from t2t_jax.config import ModelConfig
from t2t_jax.errors import UserError, in_one_line
from t2t_jax.interchange.marian_nmt_files import find_files, parse_yaml, read_marian_vocabulary
from t2t_jax.interchange.marian_nmt_options import MarianOptions
from t2t_jax.interchange.model_files import config_of
from t2t_jax.interchange.numbering import END, rows_in
from t2t_jax.interchange.portable import PortableModel
from t2t_jax.interchange.tensors import Tensors
from t2t_jax.system.regular_file import regular

_OPTIONS, _OUTPUT = "special:model.yml", "decoder_ff_logit_out"
_NEVER = -1e4
"""The bias of padding in the output. It is finite, so that label smoothing has a finite loss."""
_EPSILON = 1e-6
_ACTIVATIONS = {"relu": "relu", "swish": "silu", "gelu": "gelu"}
_OLD_GELU = np.float32(1.702)
_Named: TypeAlias = tuple[str, Float32[np.ndarray, "..."]]


def read(path: Path) -> PortableModel:
    """Read a model of marian-nmt, given its `.npz` file or a directory with one.

    Raises:
      UserError: a file is missing, or damaged, or of another kind; or the model has an option that
        models of this package lack; or a file that is named lies outside of the directory.
    """
    files = find_files(path)
    weights = _Weights(files.model)
    options = weights.options
    options.check()
    embeddings = _embeddings(weights)
    sizes = len(embeddings["source"]), len(embeddings["target"])
    vocabulary, orders = read_marian_vocabulary(files, sizes)
    share_all = options.tied_inputs and options.tied_output
    if share_all and not np.array_equal(*orders):
        raise UserError(
            f"{files.model} has one embedding for both languages, but {END} has another id in "
            f"{files.source} than in {files.target}: they are not the vocabularies of the model"
        )
    fields = (
        _model_fields(weights)
        | options.norms()
        | {
            "model.share_embeddings": share_all,
            "model.share_target_embedding": options.tied_output and not share_all,
            "model.source_vocab_size": None if share_all else vocabulary.source_size,
            "data.vocab_size": len(vocabulary),
        }
    )
    if "beam-size" in files.settings:
        fields["decoding.beam_size"] = files.settings["beam-size"]
    if "normalize" in files.settings:
        fields["decoding.length_penalty"] = float(files.settings["normalize"])
    config = config_of(files.model, fields)
    arrays = {
        **{
            name: rows_in(embeddings[use], orders[0 if use == "source" else 1])
            for use, name in config.model.embeddings.items()
        },
        "output_bias": rows_in(embeddings["bias"], orders[1], missing=_NEVER),
        **dict(_arrays(weights, config.model)),
    }
    if config.model.position == "learned":
        arrays |= dict.fromkeys(("source_position", "target_position"), weights["Wpos"])
    weights.tensors.finish()
    return PortableModel(config, vocabulary, arrays, ())


class _Weights:
    """The arrays of an `.npz` file, in which a vector is a matrix of one row."""

    def __init__(self, file: Path) -> None:
        arrays = _numbers(file)
        if _OPTIONS not in arrays:
            raise UserError(f"{file} has no {_OPTIONS}, so it is no model of marian-nmt")
        text = arrays.pop(_OPTIONS).tobytes().partition(b"\0")[0]
        self.options = MarianOptions(file, parse_yaml(text, f"{_OPTIONS} in {file}"))
        self.tensors = Tensors(file, arrays)

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def __getitem__(self, name: str) -> Float32[np.ndarray, "..."]:
        """Take a matrix, or a vector."""
        array = self.tensors.take(name, None, None)
        return array[0] if len(array) == 1 else array


def _numbers(file: Path) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Read the arrays of a file, or refuse arrays that are larger than the file itself."""
    try:
        with regular(file).open("rb") as opened, np.load(opened, allow_pickle=False) as archive:
            if sum(member.file_size for member in archive.zip.infolist()) > file.stat().st_size:
                raise ValueError("its parts are larger than the whole")
            return {name: archive[name] for name in archive.files}
    except OSError as error:
        raise UserError(f"{file} cannot be read: {error.strerror or error}") from error
    except Exception as error:  # a damaged archive may raise anything
        reason = in_one_line(error)
        raise UserError(
            f"{file} is damaged, or no .npz of numbers ({reason:.200}); copy it anew"
        ) from error


def _model_fields(weights: _Weights) -> dict[str, Any]:
    options = weights.options
    position = "sinusoidal_t2t"
    if options.get("transformer-disable-position-embeddings", False):
        position = "none"
    elif "Wpos" in weights:
        position = "learned"
    activation = _ACTIVATIONS[options.get("transformer-ffn-activation", "swish")]
    fields = {
        "d_model": options.get("dim-emb", 512),
        "num_heads": options.get("transformer-heads", 8),
        "d_ff": options.d_ff,
        "feed_forward": "silu" if options.has_old_gelu else activation,
        "num_encoder_layers": options.get("enc-depth", 1),
        "num_decoder_layers": options.get("dec-depth", 1),
        "norm_epsilon": _EPSILON,
        "position": position,
        "scale_embeddings": position == "sinusoidal_t2t",
        "attention_bias": True,
        "output_bias": True,
        "start_token": "padding",
    }
    longest = {}
    if position == "learned":
        fields["max_positions"] = rows = len(weights["Wpos"])
        extra = min(rows // 2, 50)
        longest = {"decoding.max_extra_length": extra, "data.max_length": min(rows - extra, 256)}
    return {**{f"model.{name}": value for name, value in fields.items()}, **longest}


def _embeddings(weights: _Weights) -> dict[str, Float32[np.ndarray, "..."]]:
    """Return the matrices with a row for each entry, by their uses, and the bias of the output."""
    options = weights.options
    found = {
        use: weights["Wemb" if options.tied_inputs else f"{stack}_Wemb"]
        for use, stack in (("source", "encoder"), ("target", "decoder"))
    }
    target = output = found["target"]
    if not options.tied_output:
        older = f"{_OUTPUT}_W"
        output = weights[older].T if older in weights else weights[f"{_OUTPUT}_Wt"]
    has_bias = not options.get("output-omit-bias", False)
    bias = weights[f"{_OUTPUT}_b"] if has_bias else np.zeros(len(target), np.float32)
    if output.shape != target.shape or bias.shape != target.shape[:1]:
        raise UserError(
            f"{options.file} has embeddings of shape {target.shape}, and an output of shapes "
            f"{output.shape} and {bias.shape}: they do not belong together"
        )
    return {**found, "output": output, "bias": bias}


def _arrays(weights: _Weights, model: ModelConfig) -> Iterator[_Named]:
    """Yield the parameters of the layers, and of the norms before and after them."""
    numbers = {
        "encoder": range(1, model.stacks[0].num_layers + 1),
        "decoder": weights.options.decoder_layers,
    }
    for stack, side in (("encoder", "source"), ("decoder", "target")):
        if model.embedding_norm:
            yield from _norm(weights, model, f"{side}_embedding_norm", f"{stack}_emb_{{}}_pre")
        if model.norm_order == "pre":
            yield from _norm(weights, model, f"{stack}.norm", f"{stack}_top_{{}}")
        for number, theirs in enumerate(numbers[stack]):
            yield from _layer(weights, model, f"{stack}.layers.{number}", f"{stack}_l{theirs}")


def _norm(weights: _Weights, model: ModelConfig, ours: str, theirs: str) -> Iterator[_Named]:
    """Yield the parameters of a norm, with whose names in the file `theirs` is filled."""
    if model.norm == "rms":
        yield f"{ours}.scale", weights[theirs.format("rms_scale")]
        return
    for name in ("scale", "bias"):
        yield f"{ours}.{name}", weights[theirs.format(f"ln_{name}")]


def _layer(weights: _Weights, model: ModelConfig, ours: str, theirs: str) -> Iterator[_Named]:
    """Yield the parameters of a layer, whose names in the file begin with `theirs`."""
    norm = "{}_pre" if model.norm_order == "pre" else "{}"
    attentions = {"self_attention": "self"}
    if theirs.startswith("decoder"):
        attentions["cross_attention"] = "context"
    for name, short in attentions.items():
        place, own = f"{ours}.{name}", f"{theirs}_{short}"
        for letter in "QKVO":
            for kind in "Wb":
                yield f"{place}.{kind}_{letter}", weights[f"{own}_{kind}{letter.lower()}"]
        yield from _norm(weights, model, f"{place}.norm", f"{own}_Wo_{norm}")
    place, own = f"{ours}.feed_forward", f"{theirs}_ffn"
    factor = _OLD_GELU if weights.options.has_old_gelu else np.float32(1)
    for number, by in ((1, factor), (2, 1 / factor)):
        yield f"{place}.W_{number}", weights[f"{own}_W{number}"] * by
    yield f"{place}.b_1", weights[f"{own}_b1"] * factor
    yield f"{place}.b_2", weights[f"{own}_b2"]
    yield from _norm(weights, model, f"{place}.norm", f"{own}_ffn_{norm}")
