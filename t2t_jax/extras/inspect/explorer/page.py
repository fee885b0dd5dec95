"""Write an HTML file that shows how a model translates a sentence, and works offline.

The frame, page.html, blocks all downloads. Attention weights are bytes from 0 to 255.
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
from t2t_jax.extras.inspect.head_kinds import attention_sides, count_heads
from t2t_jax.modules.embedding import PositionEncoding
from t2t_jax.modules.parameters import Parameters
from t2t_jax.system.atomic_file import write_whole

_MIN_DISTANCES = 64  # the least number of positions in the plot of dot products
_HEIGHT = 900  # pixels of the frame in a notebook


@dataclass(frozen=True, repr=False)
class Exploration:
    """A page about a model and a sentence. Notebooks display the page; `save` writes a file."""

    page: str
    """The page, as HTML."""
    maps: AttentionMaps
    """The attention weights that the page shows."""

    def save(self, path: str | Path) -> None:
        """Write the page atomically; raise a `UserError` if it cannot be written."""
        write_whole(path, self.page.encode())

    def _repr_html_(self) -> str:
        """Return the page as an iframe, so that its style does not affect the notebook."""
        page = html.escape(self.page, quote=True)
        return f'<iframe srcdoc="{page}" width="100%" height="{_HEIGHT}" style="border:0"></iframe>'


def explore(translator: Translator, text: str, references: str | None = None) -> Exploration:
    """Build a page that shows attention, beam search and input of a model for a sentence.

    Args:
      translator: the model.
      text: the source sentence.
      references: the translation to show attention for; None means to translate `text`.

    Raises:
      TypeError: an argument has the wrong type.
      UserError: the sentence is blank or too long, or the model is an ensemble or samples tokens.
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
    # Without `<`, the data cannot start a tag or end the script.
    content = json.dumps(data, ensure_ascii=False, allow_nan=False).replace("<", "\\u003c")
    return page.replace("/*DATA*/", content)


def _attention(maps: AttentionMaps, part: Part) -> dict[str, object]:
    weights = getattr(maps, part)
    sides = attention_sides((maps.source_words, maps.source), (maps.target_words, maps.target))
    counts = count_heads(weights, *sides[part], part)
    return {
        "shape": weights.shape,
        "weights": _bytes(weights),
        "kinds": counts.kinds(),
        "entropy": np.round(counts.mean_entropy, 3).tolist(),
        "relativeEntropy": np.round(counts.mean_relative_entropy, 3).tolist(),
    }


def _bytes(values: Float[np.ndarray, "..."]) -> str:
    """Encode values from 0 to 1 as bytes from 0 to 255, in base64."""
    return base64.b64encode(np.rint(values * 255).astype(np.uint8).tobytes()).decode()


def _search(translator: Translator, record: BeamRecord) -> dict[str, object]:
    """Return the hypotheses of a beam search as JSON, each with its parent's index or -1."""
    indices = {key: index for index, key in enumerate(record.nodes)}
    last_tokens = [key[-1:] for key in record.nodes]
    pieces = [piece for [piece] in translator.vocabulary.target_pieces(last_tokens)]
    texts = translator.vocabulary.decode(list(record.nodes))
    nodes = [
        {
            "parent": indices.get(key[:-1], -1),
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
        "winner": indices.get(record.winner, -1),
        "beamSize": record.beam_size,
        "alpha": record.length_penalty,
        "offset": record.offset,
    }


def _input(translator: Translator, text: str) -> dict[str, object]:
    """Return a text's embeddings, position vectors and their dot products by distance, as JSON."""
    model = translator.config.model
    [tokens] = translator.encode([text])
    embedding_matrix = translator.params[model.embeddings["source"]]["embedding"]
    embeddings = np.asarray(embedding_matrix)[tokens] * model.embedding_scale
    length = int(min(max(len(tokens), _MIN_DISTANCES), translator.longest_sentence))
    position_table = _positions(model, translator.params, length)
    positions = position_table[: len(tokens)]
    return {
        "embedding": _encoded(embeddings),
        "position": _encoded(positions) if positions.any() else None,
        "kind": model.position.replace("_", " "),
        "products": np.round(position_table @ position_table[0], 4).tolist(),
    }


def _positions(
    model: ModelConfig, params: Parameters, length: int
) -> Float[np.ndarray, "t d_model"]:
    module = PositionEncoding(model, causal=False)
    variables = {"params": params.get("source_position", {})}
    zero_embeddings = jnp.zeros((1, length, model.d_model))
    positions = jnp.arange(length)[None]
    return np.asarray(module.apply(variables, zero_embeddings, positions, length))[0]


def _encoded(values: Float[np.ndarray, "t d_model"]) -> dict[str, object]:
    """Return values as JSON: bytes from 0 (-largest) to 255 (largest), shape and `largest`."""
    largest = float(np.abs(values).max(initial=1e-9))
    return {
        "shape": values.shape,
        "largest": round(largest, 4),
        "values": _bytes((values / largest + 1) / 2),
    }
