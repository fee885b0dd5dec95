"""The neutral format: a file of safetensors with one array for every parameter.

    OUT/model.safetensors       the parameters, under the names of `modules.names`
    OUT/config.json             the config of the run
    OUT/vocabulary.model        the vocabulary, a SentencePiece model
    OUT/vocabulary.sha256       its hash
    OUT/README.md               how to read the model

A model that is written in float32 and read again is the same, bit for bit. `t2t_jax.load` and every
command open the directory as a run; `interchange.run` adds what the run recorded.
"""

from pathlib import Path

from t2t_jax.config import Config
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange import places, portable
from t2t_jax.extras.interchange.carried import ANY, Carried
from t2t_jax.training import parameter_file
from t2t_jax.workdir import CONFIG, PARAMETERS, read_config, read_vocabulary, write_vocabulary

VOCABULARIES = (Vocabulary,)

_README = """\
# A Transformer of t2t_jax

`model.safetensors` has an array for every parameter, named as in "Attention Is All You Need":
`encoder.layers.0.self_attention.W_Q` is W^Q of section 3.2.2 in the first layer, all heads side by
side. Matrices are as in the paper's formulas, x W. `config.json` has the sizes and the options, and
`vocabulary.model` is a SentencePiece model.

    from safetensors.numpy import load_file

    load_file("model.safetensors")["encoder.layers.0.self_attention.W_Q"].shape

It opens as a run of t2t_jax, by `t2t_jax.load("DIRECTORY")` in Python or by a command:

    t2t-jax translate --workdir DIRECTORY --input FILE
"""


def carried(config: Config) -> Carried:
    """Return all fields of a config, each with every value: the config is written as a whole."""
    del config  # every config can be held
    return dict.fromkeys(("model", "data", "decoding"), ANY)


def write(model: portable.PortableModel, directory: Path, dtype: str = "float32") -> None:
    """Write a model in the neutral format, with parameters in float32 or bfloat16."""
    saved = parameter_file.SavedParameters(model.arrays, model.steps, model.vocabulary.fingerprint)
    parameter_file.write_parameters(directory / PARAMETERS, saved, dtype)
    (directory / CONFIG).write_text(model.config.to_json(), encoding="utf-8")
    write_vocabulary(directory, model.vocabulary)
    (directory / "README.md").write_text(_README, encoding="utf-8")


def read(path: Path) -> portable.PortableModel:
    """Read a model that `write` has written."""
    file = path / PARAMETERS
    if not file.exists():
        raise UserError(f"{path} is not a directory that t2t-jax export --to safetensors wrote")
    saved = parameter_file.read_parameters(file)
    tensors = places.Tensors(file, saved.arrays)
    arrays = {name: tensors.take(name) for name in saved.arrays}
    vocabulary = read_vocabulary(path)
    parameter_file.check_vocabulary(file, saved, vocabulary.fingerprint)
    return portable.PortableModel(read_config(path), vocabulary, arrays, saved.steps)
