"""The page that translates in a browser, with the graphs beside it and without a server's help.

It runs them by onnxruntime-web, whose package of npm is brought by the user and known by its hash.
"""

import base64
import hashlib
import io
import tarfile
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any

from sentencepiece import sentencepiece_model_pb2

from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.system.offline_page import offline_page

VERSION = "1.30.0"
"""The version of onnxruntime-web."""

_SHA512 = "q0y+JrrtukXSzsBWEMccVfqX25LRmosXHF+CaRJmg8pZClzcV7svNc4rKY3jL02Vb7QmRMDs1SigqR4CXAfKYQ=="
_FILES = "ort.wasm.bundle.min.mjs", "ort-wasm-simd-threaded.wasm"
_LICENSE = "onnxruntime-web-LICENSE.txt"


def page_files(about: Any) -> Mapping[str, bytes]:
    """Return the files of the page by name, but those of onnxruntime-web.

    Args:
      about: what model.json says of the graphs.
    """
    title = "{} to {}".format(*about["languages"])
    page = offline_page(__package__, "translate", title, about, reads_beside=True)
    license_text = (files(__package__ or "") / _LICENSE).read_bytes()
    return {"index.html": page.encode(), _LICENSE: license_text}


def check_splits(vocabulary: Vocabulary) -> None:
    """Refuse a vocabulary whose subwords the page cannot split text into.

    Raises:
      UserError: the vocabulary is not one of BPE.
    """
    spec = sentencepiece_model_pb2.ModelProto.FromString(vocabulary.serialized)
    kinds, kind = spec.trainer_spec.ModelType, spec.trainer_spec.model_type
    if kind != kinds.BPE:
        raise UserError(
            f"the page splits text by BPE, and this vocabulary is of SentencePiece's kind "
            f"{kinds.Name(kind)}; export without --page"
        )


def runtime_files(package: Path) -> Mapping[str, bytes]:
    """Return the files of onnxruntime-web that the page loads, by name.

    Args:
      package: the file of npm's package.

    Raises:
      UserError: the file is not there, or is another package.
    """
    way_out = f"npm pack onnxruntime-web@{VERSION} makes onnxruntime-web-{VERSION}.tgz"
    try:
        content = package.read_bytes()
    except OSError as error:
        raise UserError(f"--page {package}: {error.strerror or error}; {way_out}") from error
    if base64.b64encode(hashlib.sha512(content).digest()).decode() != _SHA512:
        raise UserError(f"--page {package} is not onnxruntime-web {VERSION}; {way_out}")
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        members = {name: archive.extractfile(f"package/dist/{name}") for name in _FILES}
        return {name: member.read() for name, member in members.items() if member}
