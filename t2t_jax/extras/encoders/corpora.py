"""Corpora of labels: of sentences, and of words."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain

from t2t_jax.config import DataConfig
from t2t_jax.data import text_files
from t2t_jax.data.corpus import pair_splits, tree_splits
from t2t_jax.data.splits import Chunk, Split, digest
from t2t_jax.data.trees import is_tag
from t2t_jax.errors import UserError, quote

_BUNDLED = "bundled:"


def label_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of sentences with a label each: `train.txt` beside `train.label`.

    In the bundled corpus, each line's label is its language. See `TaskFacts.corpora`.
    """
    if name == _BUNDLED:
        languages = config.source_language, config.target_language
        return _labels_of(pair_splits(name, config), partial(_read_languages, languages))
    return _beside_text(name, config, "label", _BUNDLED)


def tag_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits of sentences with a tag for each word: `train.txt` beside `train.tags`.

    Trees give the tags of their words. See `TaskFacts.corpora`.
    """
    scheme, _, place = name.partition(":")
    if scheme == "trees" and all(place.split("+")):
        return _labels_of(tree_splits(name, config), _read_tags)
    return _beside_text(name, config, "tags", "trees:DIR")


def _beside_text(name: str, config: DataConfig, suffix: str, others: str) -> dict[str, Split]:
    scheme, _, place = name.partition(":")
    if scheme == "text" and place:
        files = text_files.file_splits(place, config, ("text", suffix))
        return files or text_files.text_splits(text_files.corpus_directory(place), "txt", suffix)
    raise UserError(
        f"corpus={quote(name)} has no labels for data.task={config.task!r}; give text:DIR with "
        f"train.txt and train.{suffix} in DIR, or {others}"
    )


def _labels_of(
    whole: Mapping[str, Split], read: Callable[[Split], Iterator[Chunk]]
) -> dict[str, Split]:
    def fingerprint(part: Split) -> str:
        return digest("labels", part.fingerprint())

    return {split: Split.of(fingerprint, read, part) for split, part in whole.items()}


def _read_tags(part: Split) -> Iterator[Chunk]:
    """Yield words and the tag of each, from words and the symbols of trees."""
    for words, symbols in part.read():
        yield words, [" ".join(filter(is_tag, line.split())) for line in symbols]


def _read_languages(languages: tuple[str, str], part: Split) -> Iterator[Chunk]:
    """Yield the lines of both sides alternately, each labelled with its language."""
    for pair in part.read():
        lines = list(chain.from_iterable(zip(*pair, strict=True)))
        yield lines, list(languages) * len(pair[0])
