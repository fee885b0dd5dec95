"""Read data sets of TensorFlow Datasets (TFDS) without TensorFlow."""

import os
import re
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from t2t_jax.config import DataConfig
from t2t_jax.data import splits as parts
from t2t_jax.data.splits import Chunk, Split, digest
from t2t_jax.errors import UserError, in_one_line, needs_extra
from t2t_jax.system.regular_file import check_regular

_SPLITS = {"train": "train", "validation": "dev", "dev": "dev", "test": "test"}


def pair_splits(name: str, config: DataConfig) -> dict[str, Split]:
    """Return the splits by name of a TFDS data set, such as tfds:wmt14_translate/de-en."""
    name = name.partition(":")[2]
    builder = tfds_builder(name)
    from tensorflow_datasets.core.features import Text

    # A data set with a single feature has no mapping of names to features.
    features, languages = builder.info.features, (config.source_language, config.target_language)
    feature_by_name = dict(getattr(features, "items", dict)())
    for language in languages:
        if language not in feature_by_name:
            names = ", ".join(feature_by_name)
            raise UserError(f"TFDS data set {name} has no language {language!r}, only {names}")
        if not isinstance(feature_by_name[language], Text):
            kind = type(feature_by_name[language]).__name__
            raise UserError(f"{language!r} of TFDS data set {name} is not text, but a {kind}")
    splits = {}
    for tfds_name, split in _SPLITS.items():
        if tfds_name in builder.info.splits:
            info = builder.info.splits[tfds_name]
            identity = builder.info.full_name, tfds_name, info.shard_lengths, info.num_bytes
            splits[split] = Split(
                partial(digest, repr((*identity, *languages))),
                partial(_read_tfds, builder, tfds_name, languages),
            )
    return splits


def tfds_builder(name: str) -> Any:
    """Return the TFDS builder of a prepared data set, such as wmt14_translate/de-en."""
    with needs_extra("train", f"data.corpus='tfds:{name}'"):
        import tensorflow_datasets as tfds
        import tensorflow_datasets.translate  # registers WMT, which TFDS does only on first use

    # TFDS reads this variable only once, on import.
    data_dir = os.environ.get("TFDS_DATA_DIR")
    root = Path(data_dir or tfds.core.constants.DATA_DIR, re.split("[/:]", name)[0])
    for path in root.rglob("*"):
        if not path.is_dir():
            check_regular(path)
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except (ValueError, ImportError) as error:
        reason = str(error).strip().splitlines()[0]
        raise UserError(f"TFDS has no data set {name!r}, in code or on disk: {reason}") from error
    except Exception as error:  # damaged files raise errors of any class
        raise _read_error(name, data_dir or "the default TFDS directory", error) from error
    # `tfds build` would need TensorFlow.
    prepare = (
        'python -c "import tensorflow_datasets as tfds, tensorflow_datasets.translate; '
        f"tfds.builder('{name}', file_format='array_record').download_and_prepare()\""
    )
    if not builder.is_prepared():
        raise UserError(
            f"TFDS data set {name} is not in {builder.data_path}; prepare it with: {prepare}"
        )
    try:
        builder.as_data_source()
    except NotImplementedError as error:
        raise UserError(
            f"TFDS data set {name} in {builder.data_path} is not in file_format=array_record, and "
            f"TensorFlow is not used; set TFDS_DATA_DIR to an empty directory and run: {prepare}"
        ) from error
    return builder


def _read_error(name: str, directory: object, error: Exception) -> UserError:
    reason = in_one_line(error)[:200] or type(error).__name__
    return UserError(
        f"TFDS data set {name} in {directory} cannot be read: {reason}; remove it there, and "
        "prepare it again"
    )


def _read_tfds(builder: Any, split: str, languages: tuple[str, str]) -> Iterator[Chunk]:
    try:
        data = builder.as_data_source(split=split)
        for start in range(0, len(data), parts.CHUNK_LINES):
            examples = data.__getitems__(range(start, min(start + parts.CHUNK_LINES, len(data))))
            sources, targets = (
                [_text_of(example[language]) for example in examples] for language in languages
            )
            yield sources, targets
    except UserError:
        raise
    except Exception as error:  # array_record and the parser raise errors of any class
        raise _read_error(builder.name, builder.data_path, error) from error


def _text_of(feature: bytes | None) -> str:
    if feature is None:  # array_record returns None where a file was truncated
        raise EOFError("an example is empty, so a file ends too early")
    return feature.decode()
