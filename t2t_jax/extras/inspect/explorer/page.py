"""A page of HTML, in one file, that shows how a model works on a sentence, without a network.

The files beside this one are its frame, which blocks all downloads, its style and its script.
Attention weights are stored as bytes, in which 255 means 1.
"""

import base64
import html
import json
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from t2t_jax.config import ModelConfig
from t2t_jax.config.model import PARTS, Part
from t2t_jax.decoding.attention_maps import AttentionMaps, attention_maps
from t2t_jax.decoding.translator import Translator
from t2t_jax.extras.inspect.beam_record import BeamRecord, record_search
from t2t_jax.extras.inspect.head_kinds import count_heads, sides
from t2t_jax.modules.embedding import PositionEncoding
from t2t_jax.modules.parameters import Parameters
from t2t_jax.system.atomic_file import write_whole

_DISTANCES = 64  # positions whose dot products are drawn, at least
_HEIGHT = 900  # of the page in a notebook, in pixels


@dataclass(frozen=True, repr=False)
class Exploration:
    """A page about a model and a sentence. A notebook shows it; `save` writes it to a file."""

    page: str
    """The page, as HTML."""
    maps: AttentionMaps
    """The attention weights that the page shows."""

    def save(self, path: str | Path) -> None:
        """Write the page, whole or not at all; raise a `UserError` if it cannot be written."""
        write_whole(path, self.page.encode())

    def _repr_html_(self) -> str:
        """Return the page for a notebook, in a separate frame, so that styles do not mix."""
        page = html.escape(self.page, quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="{_HEIGHT}" style="border:0"></iframe>'


def explore(translator: Translator, text: str, references: str | None = None) -> Exploration:
    """Make a page on which a model's work on a sentence can be explored.

    Args:
      translator: the model.
      text: a sentence of the source language.
      references: a translation whose attention is shown; None is the model's own.

    Raises:
      TypeError: an argument is of the wrong type.
      UserError: the sentence is blank or too long, or the model is an ensemble, or it draws tokens
        at random.
    """
    translation = translator.translate([text])[0] if references is None else references
    maps = attention_maps(translator, text, translation)
    record = record_search(translator, text)
    data = {
        "text": text,
        "translation": translation,
        "source": maps.source,
        "target": maps.target,
        "sourceWords": maps.source_words,
        "targetWords": maps.target_words,
        "attention": {name: _attention(maps, name) for name in PARTS},
        "search": _search(translator, record),
        "input": _input(translator, text),
    }
    return Exploration(_html(data), maps)


def _html(data: object) -> str:
    folder = files(__package__ or "")
    page = (folder / "page.html").read_text("utf-8")
    for mark, ending in (("STYLE", "css"), ("SCRIPT", "js")):
        page = page.replace(f"/*{mark}*/", (folder / f"page.{ending}").read_text("utf-8"))
    # Without `<`, the data cannot begin a tag or end the script.
    content = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return page.replace("/*DATA*/", content)


def _attention(maps: AttentionMaps, name: Part) -> dict[str, object]:
    weights = getattr(maps, name)
    of_attentions = sides((maps.source_words, maps.source), (maps.target_words, maps.target))
    counts = count_heads(weights, *of_attentions[name], name)
    return {
        "shape": weights.shape,
        "weights": _bytes(weights),
        "kinds": counts.kinds(),
        "entropy": np.round(counts.mean_entropy, 3).tolist(),
        "relativeEntropy": np.round(counts.mean_relative_entropy, 3).tolist(),
    }


def _bytes(shares: Float[np.ndarray, "..."]) -> str:
    """Encode numbers from 0 to 1 as bytes, in base64."""
    return base64.b64encode(np.rint(shares * 255).astype(np.uint8).tobytes()).decode()


def _search(translator: Translator, record: BeamRecord) -> dict[str, object]:
    """Return the hypotheses of a search, each with the index of its parent, or -1."""
    numbers = {key: number for number, key in enumerate(record.nodes)}
    last = [key[-1:] for key in record.nodes]
    pieces = [piece for [piece] in translator.vocabulary.target_pieces(last)]
    texts = translator.vocabulary.decode(list(record.nodes))
    nodes = [
        {
            "parent": numbers.get(key[:-1], -1),
            "length": len(key),
            "piece": piece,
            "text": text,
            "logProb": round(node.log_prob, 4),
            "fate": node.fate,
            "score": None if node.score is None else round(node.score, 4),
        }
        for (key, node), piece, text in zip(record.nodes.items(), pieces, texts, strict=True)
    ]
    return {
        "nodes": nodes,
        "winner": numbers.get(record.winner, -1),
        "beamSize": record.beam_size,
        "alpha": record.length_penalty,
        "offset": record.offset,
    }


def _input(translator: Translator, text: str) -> dict[str, object]:
    """Return the encoder's input: embeddings, positions, and positions' products by distance."""
    model = translator.config.model
    [tokens] = translator.encode([text])
    matrix = translator.params[model.embeddings["source"]]["embedding"]
    embedded = np.asarray(matrix)[tokens] * model.embedding_scale
    farthest = int(min(max(len(tokens), _DISTANCES), translator.longest_sentence))
    table = _positions(model, translator.params, farthest)
    positions = table[: len(tokens)]
    return {
        "embedding": _scaled(embedded),
        "position": _scaled(positions) if positions.any() else None,
        "kind": model.position.replace("_", " "),
        "products": np.round(table @ table[0], 4).tolist(),
    }


def _positions(
    model: ModelConfig, params: Parameters, length: int
) -> Float[np.ndarray, "t d_model"]:
    """Return the vectors added to the embeddings of `length` tokens; zeros if none are added."""
    module = PositionEncoding(model, causal=False)
    variables = {"params": params.get("source_position", {})}
    nothing = jnp.zeros((1, length, model.d_model))
    places = jnp.arange(length)[None]
    return np.asarray(module.apply(variables, nothing, places, length))[0]


def _scaled(values: Float[np.ndarray, "t d_model"]) -> dict[str, object]:
    """Return a table as bytes, with the number that 255 stands for, and 0 for its negative."""
    largest = float(np.abs(values).max(initial=1e-9))
    return {
        "shape": values.shape,
        "largest": round(largest, 4),
        "values": _bytes((values / largest + 1) / 2),
    }
