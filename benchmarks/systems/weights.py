"""The model that systems share, with random weights or those of a run, in the neutral form.

python -m systems.weights config.json DIRECTORY
python -m systems.weights runs/base DIRECTORY
"""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sentencepiece import sentencepiece_model_pb2

from t2t_jax.batch import BOS_ID, EOS_ID, PAD_ID, UNK_ID
from t2t_jax.config import Config
from t2t_jax.data.vocabularies.shared import SharedVocabulary
from t2t_jax.extras.interchange.formats import read_model, write_model
from t2t_jax.extras.interchange.portable import PortableModel, portable_model
from t2t_jax.modules.names import named_arrays

_SPECIAL = {PAD_ID: "<pad>", EOS_ID: "</s>", BOS_ID: "<s>", UNK_ID: "<unk>"}


def read_weights(directory: str) -> PortableModel:
    """Read the model that this module, run as a program, has written."""
    return read_model("safetensors", Path(directory))


@contextmanager
def exported(directory: str, name: str) -> Iterator[tuple[PortableModel, Path]]:
    """Return a context with the model of `read_weights`, and its directory in another format."""
    model = read_weights(directory)
    with tempfile.TemporaryDirectory() as place:
        write_model(model, name, Path(place) / "model")
        yield model, Path(place) / "model"


def _numbers(size: int) -> SharedVocabulary:
    """Return a vocabulary whose subwords are the numbers of their ids."""
    kinds = sentencepiece_model_pb2.ModelProto.SentencePiece
    proto = sentencepiece_model_pb2.ModelProto()
    for number in range(size):
        kind = kinds.NORMAL
        if number in _SPECIAL:
            kind = kinds.UNKNOWN if number == UNK_ID else kinds.CONTROL
        piece = _SPECIAL.get(number, str(number))
        proto.pieces.add(piece=piece, score=-float(number), type=kind)
    spec = proto.trainer_spec
    spec.pad_id, spec.eos_id, spec.bos_id, spec.unk_id = PAD_ID, EOS_ID, BOS_ID, UNK_ID
    return SharedVocabulary(proto.SerializeToString())


def _write(source: str, out: str) -> int:
    import workload  # sets the process up before JAX

    if Path(source).is_dir():
        model = portable_model(Path(source))
    else:
        config = Config.from_json(Path(source).read_text(encoding="utf-8"))
        arrays = named_arrays(workload.random_parameters(config))
        model = PortableModel(config, _numbers(config.data.vocab_size), arrays, ())
    write_model(model, "safetensors", Path(out))
    return 0


if __name__ == "__main__":
    from t2t_jax.system.program import run

    run(lambda arguments: _write(*arguments))
