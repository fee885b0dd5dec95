"""The cells of a grid, as a scaling law reads them: their sizes, tokens, operations and losses.

N is the number of parameters, with or without those of the vocabulary. D is the number of target
tokens in all steps, as the loss is that of a target token. C is the number of operations in all
steps, by the cost model and the lengths of the corpus (`config.cost.model_flops_per_step`): a model
with an encoder meets a source token with some of its parameters and a target token with others, so
that C is not 6 N D.
"""

import math
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jaxtyping import Float

from t2t_jax.config import Config, differences, from_dict
from t2t_jax.config.cost import num_parameters, vocabulary_parameters
from t2t_jax.config.tasks import task_name
from t2t_jax.errors import UserError, did_you_mean
from t2t_jax.run.job import read_jobs
from t2t_jax.sweep.cell import RESULT, SCORE_AGAIN, SEED
from t2t_jax.sweep.comparison import subwords
from t2t_jax.system.records import NUMBER, Record, Schema, read_object
from t2t_jax.workdir import END, read_log

_OF_SIZE = (
    *("model.d_model", "model.num_heads", "model.num_kv_heads", "model.d_k", "model.d_v"),
    *("model.d_ff", "model.num_encoder_layers", "model.num_decoder_layers"),
    *("training.peak_learning_rate", "training.learning_rate_factor", "training.warmup_steps"),
    *("training.schedule_steps", "training.seed"),
)
"""The fields that may differ between the cells of a law: sizes, and rates that go with them."""
_SCHEMA = Schema(
    {"config": dict, "corpus": str, "split": str, "perplexity": NUMBER}, {"steps": int}
)


class ScalingCell(NamedTuple):
    """A trained model of a grid."""

    variant: str
    """The name of the variant in the grid."""
    name: str
    """The variant and the seed as one name, such as `A-h1/seed0`."""
    family: str
    """The family of networks, as `model.architecture` names it."""
    parameters: int
    """The number of all parameters."""
    layer_parameters: int
    """The number of parameters without the vocabulary's, which are embeddings and the
    output projection."""
    source_tokens: float
    """The number of source tokens in all steps."""
    target_tokens: float
    """The number of target tokens in all steps."""
    flops: float
    """The number of operations of the matrix products in all steps."""
    loss: float
    """The mean negative log-likelihood of a target token of dev, in nats."""


class ScalingGrid(NamedTuple):
    """What a scaling law can be fitted to."""

    cells: list[ScalingCell]
    """The trained models, at least one, by family and size."""
    left_out: dict[str, str]
    """The cells that are not among them, with the reason."""
    scored_on: str
    """The corpus and the split that the losses are of."""
    unlike: dict[str, list[str]]
    """The fields beside sizes, steps and rates in which cells of a family differ, by family."""


class Observations(NamedTuple):
    """The figures of the cells of one family, each as an array."""

    log_n: Float[np.ndarray, " cells"]
    """The logarithm of N."""
    log_d: Float[np.ndarray, " cells"]
    """The logarithm of D."""
    log_c: Float[np.ndarray, " cells"]
    """The logarithm of C."""
    loss: Float[np.ndarray, " cells"]
    """The loss in nats."""


def read_cells(grid: Path) -> ScalingGrid:
    """Read the cells of a grid from its directory, which needs no config file.

    A cell that has no result, or has learned less than to guess, is left out.

    Raises:
      UserError: no cell is left, a result is damaged, or the losses are not of the same tokens.
    """
    cells, left_out = [], {}
    compared: dict[object, str] = {}
    models: dict[str, Config] = {}
    unlike: dict[str, list[str]] = {}
    scored_on = ""
    for workdir in sorted(grid.glob("*/seed*")):
        if not SEED.fullmatch(workdir.name):
            continue
        name = f"{workdir.parent.name}/{workdir.name}"
        if not (workdir / RESULT).is_file():
            left_out[name] = _why_unfinished(workdir)
            continue
        result = read_object(workdir / RESULT, _SCHEMA, SCORE_AGAIN)
        config = from_dict(result["config"])
        loss = math.log(result["perplexity"] or math.inf)  # null stands for what is not finite
        if not loss < math.log(config.data.vocab_size):
            left_out[name] = f"it diverged: its loss of {loss:.2f} is that of a guess"
            continue
        scored_on = f"{result['corpus']} {result['split']}"
        tokens = subwords(config), task_name(config.data.corpus, config.data.task)
        compared.setdefault((tokens, scored_on), name)
        cells.append(_cell(name, config, result, workdir, loss))
        family = config.model.architecture
        changed = differences(models.setdefault(family, config), config, only_binding=True)
        seen = unlike.setdefault(family, [])
        seen += [path for path in changed if path not in (*_OF_SIZE, *seen)]
    if len(compared) > 1:
        first, other, *_ = compared.values()
        raise UserError(
            f"{first} and {other} are of other corpora, tasks or subwords, so their losses cannot "
            "be compared; fit a grid in which these are the same"
        )
    if not cells:
        raise UserError(
            f"{grid} has no finished cells (VARIANT/seedN/{RESULT}); name the directory of a grid "
            "that t2t-jax sweep has trained"
        )
    return ScalingGrid(
        sorted(cells, key=lambda c: (c.family, c.parameters)), left_out, scored_on, unlike
    )


def _why_unfinished(workdir: Path) -> str:
    ends = [record for record in read_log(workdir) if record["of"] == END]
    return f"it has no result ({ends[-1].get('text')})" if ends else "it has no result"


def _cell(name: str, config: Config, result: Record, workdir: Path, loss: float) -> ScalingCell:
    jobs = [job for job in read_jobs(workdir) if job.get("target_tokens")]
    if not jobs:
        raise UserError(
            f"{workdir} has no count of its tokens (jobs/*.json), as it was trained by an earlier "
            "version; train the cell again"
        )
    per_step, steps = jobs[-1], result.get("steps") or config.training.num_train_steps
    parameters = num_parameters(config.model, config.data.vocab_size)
    return ScalingCell(
        workdir.parent.name,
        name,
        config.model.architecture,
        parameters,
        parameters - vocabulary_parameters(config.model, config.data.vocab_size),
        per_step["source_tokens"] * steps,
        per_step["target_tokens"] * steps,
        per_step["flops"] * steps,
        loss,
    )


def held_out(
    cells: Sequence[ScalingCell], patterns: Iterable[str]
) -> tuple[list[ScalingCell], list[ScalingCell]]:
    """Return the cells to fit, and those whose variants names or patterns such as `*-3e13` choose.

    Raises:
      UserError: a pattern chooses no cell, or all cells are chosen.
    """
    patterns = list(patterns)
    names = list(dict.fromkeys(cell.variant for cell in cells))
    for pattern in patterns:
        if not any(fnmatchcase(name, pattern) for name in names):
            hint = did_you_mean(pattern, names, "without --hold-out, t2t-jax fit lists them all")
            raise UserError(f"--hold-out {pattern!r} is no variant of the grid; {hint}")
    held = [c for c in cells if any(fnmatchcase(c.variant, pattern) for pattern in patterns)]
    fitted = [cell for cell in cells if cell not in held]
    if not fitted:
        raise UserError("--hold-out leaves no cell to fit; name fewer variants")
    return fitted, held


def observations(cells: Sequence[ScalingCell], count: str) -> Observations:
    """Return the figures of cells as arrays.

    Args:
      count: the parameters that are N: "total", or "layers" for those without the vocabulary's.
    """
    sizes = [c.parameters if count == "total" else c.layer_parameters for c in cells]
    columns = sizes, [c.target_tokens for c in cells], [c.flops for c in cells]
    log_n, log_d, log_c = (np.log(np.array(column, float)) for column in columns)
    return Observations(log_n, log_d, log_c, np.array([cell.loss for cell in cells]))
