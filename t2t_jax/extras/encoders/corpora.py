"""Read corpora of labeled sentences and tagged words."""

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
    """Return the splits by name of a corpus with one label per sentence, such as text:DIR."""
    if name == _BUNDLED:
        languages = config.source_language, config.target_language
        # A bundled corpus has no labels, so the label of a sentence is its language.
        return _labels_of(pair_splits(name, config), partial(_read_languages, languages))
    return _text_splits(name, config, "label", _BUNDLED)


def tag_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits by name of a corpus with one tag per word, such as trees:DIR."""
    scheme, _, path = name.partition(":")
    if scheme == "trees" and all(path.split("+")):
        return _labels_of(tree_splits(name, config), _read_tags)
    return _text_splits(name, config, "tags", "trees:DIR")


def _text_splits(name: str, config: DataConfig, suffix: str, fallback: str) -> dict[str, Split]:
    scheme, _, path = name.partition(":")
    if scheme == "text" and path:
        splits = text_files.file_splits(path, config, ("text", suffix))
        return splits or text_files.text_splits(text_files.corpus_directory(path), "txt", suffix)
    raise UserError(
        f"corpus={quote(name)} has no labels for data.task={config.task!r}; give text:DIR with "
        f"train.txt and train.{suffix} in DIR, or {fallback}"
    )


def _labels_of(
    splits: Mapping[str, Split], read: Callable[[Split], Iterator[Chunk]]
) -> dict[str, Split]:
    def fingerprint(split: Split) -> str:
        return digest("labels", split.fingerprint())

    return {name: Split.of(fingerprint, read, split) for name, split in splits.items()}


def _read_tags(split: Split) -> Iterator[Chunk]:
    for words, symbols in split.read():
        yield words, [" ".join(filter(is_tag, line.split())) for line in symbols]


def _read_languages(languages: tuple[str, str], split: Split) -> Iterator[Chunk]:
    """Yield source and target sentences alternately, each with its language as label."""
    for chunk in split.read():
        lines = list(chain.from_iterable(zip(*chunk, strict=True)))
        yield lines, list(languages) * len(chunk[0])
