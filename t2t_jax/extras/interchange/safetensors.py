"""Export and import the neutral format: a safetensors file with one array per parameter.

    OUT/model.safetensors       parameters, under the names of `modules.names`
    OUT/config.json             config of the run
    OUT/vocabulary.model        SentencePiece model
    OUT/vocabulary.sha256       hash of the vocabulary
    OUT/README.md               example in Python

An export in float32 keeps every bit of the parameters. `t2t_jax.load` and every command open the
directory as a run. The format `interchange.run` adds the records of the run.
"""

from pathlib import Path

from t2t_jax import saved_model
from t2t_jax.config import Config
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.errors import UserError
from t2t_jax.extras.interchange import places, portable
from t2t_jax.extras.interchange.carried import ANY, Carried
from t2t_jax.workdir import PARAMETERS, read_config, read_vocabulary

VOCABULARIES = (Vocabulary,)

_README = """\
# A Transformer of t2t_jax

`model.safetensors` contains an array for every parameter, named as in "Attention Is All You Need":
`encoder.layers.0.self_attention.W_Q` is W^Q of section 3.2.2 in the first layer, all heads side by
side. Matrices multiply from the right, x W, as in the paper. `config.json` contains the sizes and
the options, and `vocabulary.model` is a SentencePiece model.

    from safetensors.numpy import load_file

    load_file("model.safetensors")["encoder.layers.0.self_attention.W_Q"].shape

t2t_jax opens the directory as a run, with `t2t_jax.load("DIRECTORY")` in Python or with a command:

    t2t-jax translate --workdir DIRECTORY --input FILE
"""


def carried(config: Config) -> Carried:
    """Return `ANY` for each config section, because the format stores the whole config."""
    del config
    return dict.fromkeys(("model", "data", "decoding"), ANY)


def write(model: portable.PortableModel, directory: Path, dtype: str = "float32") -> None:
    """Write a model to a directory, with parameters in float32 or bfloat16."""
    saved = saved_model.SavedParameters(model.arrays, model.steps, model.vocabulary.fingerprint)
    saved_model.write_model(directory, model.config, model.vocabulary, saved, dtype)
    (directory / "README.md").write_text(_README, encoding="utf-8")


def read(path: Path) -> portable.PortableModel:
    """Read a model from a directory that `write` filled."""
    file = path / PARAMETERS
    if not file.exists():
        raise UserError(f"{path} is not a directory that t2t-jax export --to safetensors wrote")
    params = saved_model.read_parameters(file)
    tensors = places.Tensors(file, params.arrays)
    arrays = {name: tensors.take(name) for name in params.arrays}
    vocabulary = read_vocabulary(path)
    saved_model.check_vocabulary(file, params, vocabulary.fingerprint)
    return portable.PortableModel(read_config(path), vocabulary, arrays, params.steps)
