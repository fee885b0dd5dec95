"""All pictures of a config, or of a run, as files."""

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
from t2t_jax.system.drawing import encoded

SENTENCE = "No devices were found."
"""The default sentence whose attention is drawn."""


def write_figures(
    directory: Path, workdir: Path | None = None, sentence: str = SENTENCE
) -> list[Path]:
    """Write every picture as NAME.svg and NAME.png, over files of these names; return the paths.

    Args:
      directory: the directory for the files.
      workdir: directory of the run whose shapes, recipe and attention are drawn; None is the
        paper's base model, without attention, for which a trained model is needed.
      sentence: the sentence whose attention is drawn, unless the model reads images.
    """
    check_writable(directory)
    directory.mkdir(parents=True, exist_ok=True)
    translator = None if workdir is None else load(workdir)
    paths = []
    for name, figure in figures(translator, sentence):
        for kind in ("svg", "png"):
            path = directory / f"{name}.{kind}"
            write_whole(path, encoded(figure, kind))
            paths.append(path)
    return paths


def figures(translator: Translator | None, sentence: str) -> Iterator[tuple[str, Figure]]:
    """Yield every picture with its name, of a run's model or (None) the paper's base model."""
    config = Config() if translator is None else translator.config
    vocab_size = config.data.vocab_size if translator is None else len(translator.vocabulary)
    model = config.model
    yield "architecture", architecture(config, vocab_size)
    yield "positions_waves", formulas.waves(model.d_model)
    yield "positions_map", formulas.heat_map(model.d_model)
    yield "positions_distance", formulas.products_by_distance(model.d_model)
    yield "schedule", formulas.schedule(config.training, model.scaling_width)
    yield "label_smoothing", formulas.label_smoothing(config.training.label_smoothing)
    yield "softmax_saturation", attention.softmax_saturation()
    yield "masks", attention.masks()
    if "source" not in model.embeddings:  # images of a model are all of one size
        return
    yield "long_context", long_context(config)
    if translator is not None and model.decodes:
        yield from _attention(translator, sentence)


def _attention(translator: Translator, sentence: str) -> Iterator[tuple[str, Figure]]:
    """Yield pictures as figures 3 to 5: self-attention by layer, and cross-attention if any."""
    if not translator.config.data.facts.writes_text:  # a language model
        yield from _by_layer("decoder", *_of_language_model(translator, sentence))
        return
    maps = attention_maps(translator, sentence)
    yield from _by_layer("encoder", maps.source, maps.encoder)
    for layer in range(len(maps.cross)):
        yield f"attention_cross_{layer + 1}", attention.cross_attention(maps, layer)


def _by_layer(
    stack: str, words: list[str], weights: Float[np.ndarray, "n h s s"]
) -> Iterator[tuple[str, Figure]]:
    for layer, of_layer in enumerate(weights, 1):
        title = f"{stack} self-attention, layer {layer}: a colour for each head"
        picture = attention.lines_between_words(words, of_layer, title)
        yield f"attention_{stack}_{layer}", picture


def _of_language_model(
    translator: Translator, sentence: str
) -> tuple[list[str], Float[np.ndarray, "n h s s"]]:
    """Return the subwords that a language model reads for a sentence, and its attention weights."""
    [tokens] = translator.encode_targets([sentence])
    check_one_pass("the sentence", len(tokens), translator.longest_sentence)
    read = [start_id(translator.config.model), *tokens[:-1]]
    weights = weights_of(translator, Batch.of([read], [tokens[-1:]]))["encoder"]
    [words] = translator.vocabulary.pieces([read])
    return words, np.asarray(weights)[:, 0]
