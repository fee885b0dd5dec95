"""Write all figures of a config or a run to files."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from t2t_jax.batch import Batch
from t2t_jax.config import Config
from t2t_jax.decoding.attention_maps import attention_maps, weights_of
from t2t_jax.decoding.long_lines import check_one_pass
from t2t_jax.decoding.translator import Translator
from t2t_jax.extras.inspect.figures import attention, formulas
from t2t_jax.extras.inspect.figures.architecture import architecture
from t2t_jax.extras.inspect.figures.long_context import long_context
from t2t_jax.modules.models import start_id
from t2t_jax.run.loading import load
from t2t_jax.system.atomic_file import check_writable, write_whole
from t2t_jax.system.drawing import encode_figure

SENTENCE = "No devices were found."
"""The default sentence to draw attention for."""


def write_figures(
    directory: Path, workdir: Path | None = None, sentence: str = SENTENCE
) -> list[Path]:
    """Write every figure as NAME.svg and NAME.png, replacing existing files; return the paths.

    Args:
      workdir: the run directory of the model to draw. None draws the base model of the paper,
        without the figures of attention.
      sentence: the sentence to draw attention for.
    """
    check_writable(directory)
    directory.mkdir(parents=True, exist_ok=True)
    translator = None if workdir is None else load(workdir)
    paths = []
    for name, figure in figures(translator, sentence):
        for kind in ("svg", "png"):
            path = directory / f"{name}.{kind}"
            write_whole(path, encode_figure(figure, kind))
            paths.append(path)
    return paths


def figures(translator: Translator | None, sentence: str) -> Iterator[tuple[str, Figure]]:
    """Yield the name and plot of every figure. Without a model, draw the paper's base model."""
    config = Config() if translator is None else translator.config
    vocab_size = config.data.vocab_size if translator is None else len(translator.vocabulary)
    model = config.model
    yield "architecture", architecture(config, vocab_size)
    yield "positions_clocks", formulas.clocks()
    yield "positions_waves", formulas.waves(model.d_model)
    yield "positions_map", formulas.heat_map(model.d_model)
    yield "positions_distance", formulas.products_by_distance(model.d_model)
    yield "schedule", formulas.schedule(config.training, model.scaling_width)
    yield "label_smoothing", formulas.label_smoothing(config.training.label_smoothing)
    yield "softmax_saturation", attention.softmax_saturation()
    yield "masks", attention.masks()
    if "source" not in model.embeddings:  # an image model reads images of one size only
        return
    yield "long_context", long_context(config)
    if translator is not None and model.decodes:
        yield from _attention(translator, sentence)


def _attention(translator: Translator, sentence: str) -> Iterator[tuple[str, Figure]]:
    """Yield a figure of self-attention, and of cross-attention if any, for each layer."""
    if not translator.config.data.facts.writes_text:  # a language model
        yield from _by_layer("decoder", *_language_model_attention(translator, sentence))
        return
    maps = attention_maps(translator, sentence)
    yield from _by_layer("encoder", maps.source, maps.encoder)
    for layer in range(len(maps.cross)):
        yield f"attention_cross_{layer + 1}", attention.cross_attention(maps, layer)


def _by_layer(
    stack: str, words: list[str], weights: Float[np.ndarray, "n h s s"]
) -> Iterator[tuple[str, Figure]]:
    for layer, layer_weights in enumerate(weights, 1):
        title = f"{stack} self-attention, layer {layer}: a color for each head"
        figure = attention.lines_between_words(words, layer_weights, title)
        yield f"attention_{stack}_{layer}", figure


def _language_model_attention(
    translator: Translator, sentence: str
) -> tuple[list[str], Float[np.ndarray, "n h s s"]]:
    [tokens] = translator.encode_targets([sentence])
    check_one_pass("the sentence", len(tokens), translator.longest_sentence)
    inputs = [start_id(translator.config.model), *tokens[:-1]]
    weights = weights_of(translator, Batch.of([inputs], [tokens[-1:]]))["encoder"]
    [words] = translator.vocabulary.pieces([inputs])
    return words, np.asarray(weights)[:, 0]
