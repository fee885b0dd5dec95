"""All pictures of a config, or of a run, as files."""

from collections.abc import Iterator
from pathlib import Path

from matplotlib.figure import Figure

from t2t_jax.config import Config
from t2t_jax.decoding.attention_maps import attention_maps
from t2t_jax.decoding.translator import Translator
from t2t_jax.figures import attention, positions, training
from t2t_jax.figures.architecture import architecture
from t2t_jax.figures.drawing import encoded
from t2t_jax.figures.long_context import long_context
from t2t_jax.run.loading import load
from t2t_jax.system.atomic_file import check_writable, write_whole

SENTENCE = "No devices were found."
"""The sentence whose attention is drawn, unless another is given."""


def write_figures(
    directory: Path, workdir: Path | None = None, sentence: str = SENTENCE
) -> list[Path]:
    """Write every picture as NAME.svg and NAME.png.

    Args:
      directory: where they are written; files of these names are overwritten.
      workdir: directory of the run whose shapes, recipe and attention are drawn; None is the
        paper's base model, without attention, for which a trained model is needed.
      sentence: the source whose attention is drawn.

    Returns:
      The paths of the files.

    Raises:
      UserError: the run cannot be read, or nothing can be written in `directory`.
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
    """Every picture with its name.

    Args:
      translator: the model of a run; None is the paper's base model.
      sentence: the source whose attention is drawn.
    """
    config = Config() if translator is None else translator.config
    vocab_size = config.data.vocab_size if translator is None else len(translator.vocabulary)
    model = config.model
    yield "architecture", architecture(config, vocab_size)
    yield "positions_waves", positions.waves(model.d_model)
    yield "positions_map", positions.heat_map(model.d_model)
    yield "positions_distance", positions.products_by_distance(model.d_model)
    yield "schedule", training.schedule(config.training, model.d_model)
    yield "label_smoothing", training.label_smoothing(config.training.label_smoothing)
    yield "softmax_saturation", attention.softmax_saturation()
    yield "masks", attention.masks()
    yield "long_context", long_context(config)
    if translator is not None:
        yield from _attention(translator, sentence)


def _attention(translator: Translator, sentence: str) -> Iterator[tuple[str, Figure]]:
    """Figures 3 to 5: the heads of the encoder's layers; and the decoder's look at the source."""
    maps = attention_maps(translator, sentence)
    for layer, weights in enumerate(maps.encoder):
        title = f"encoder self-attention, layer {layer + 1}: a colour for each head"
        name = f"attention_encoder_{layer + 1}"
        yield name, attention.lines_between_words(maps.source, weights, title)
    for layer in range(len(maps.cross)):
        yield f"attention_cross_{layer + 1}", attention.cross_attention(maps, layer)
