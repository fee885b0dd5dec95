"""Scores of given translations: their log-probabilities under a model (forced decoding)."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float32, Int32

from t2t_jax.batch import Batch, one_a_row, padded
from t2t_jax.data.layout import ladder_length
from t2t_jax.decoding.arguments import texts
from t2t_jax.decoding.long_lines import check_one_pass
from t2t_jax.decoding.translator import Translator, diverged, is_blank
from t2t_jax.errors import UserError
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.interceptors import InterceptedJit
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.mesh import on_host, prefetch_one, put_rows, row_parts

# The logits of all positions exist at once, where a search has those of the last position only.
# With a vocabulary of 37,000 subwords, those of this many tokens take 0.6 GB in float32.
_TOKENS_PER_BATCH = 4096


class ForcedScore(NamedTuple):
    """The log-probability of a target, given its source."""

    log_prob: float
    """Log-probability of the whole target under the model, in nats."""
    token_log_probs: tuple[float, ...]
    """Log-probability of each subword; 0 for tokens that begin every target, such as a language
    mark."""
    tokens: tuple[int, ...]
    """Ids of the subwords, end of sentence included."""


def score(
    translator: Translator, sources: Iterable[str], targets: Iterable[str], *, first_line: int = 1
) -> list[ForcedScore]:
    """Score pairs of lines. An ensemble gives the mean of its models' distributions.

    A line break within a line counts as a space. A blank target of a blank source has probability
    1 and no subwords. Any other blank line is scored as a sentence that ends at once.

    Args:
      translator: the model, or an ensemble.
      sources: sentences.
      targets: a translation of each.
      first_line: number of the first line, for error messages.

    Returns:
      A score for each pair, which does not depend on other pairs.

    Raises:
      TypeError: an argument is of the wrong type.
      UserError: the model does not translate or has diverged, the numbers of lines differ, or a
        line is no text or too long.
    """
    translator.check_translates()
    sources, targets = texts(sources, "sources", first_line), texts(targets, "targets", first_line)
    if len(sources) != len(targets):
        raise UserError(
            f"{len(sources):,} sources and {len(targets):,} targets are not pairs; give a target "
            "line for every source line"
        )
    encoded = translator.encode(sources), translator.encode_targets(targets)
    pairs = list(zip(*encoded, strict=True))
    for number, pair in enumerate(pairs, first_line):
        for side, tokens in zip(("source", "target"), pair, strict=True):
            check_one_pass(f"{side} line {number}", len(tokens), translator.longest_sentence)
    lengths = [
        0 if is_blank(source) and is_blank(target) else max(len(source), len(target))
        for source, target in pairs
    ]
    found, begin = [ForcedScore(0.0, (), ())] * len(pairs), len(translator.vocabulary.target_begin)
    log_probs = partial(_log_probs, translator.model, translator.params)
    for line, row in of_each_line(translator, encoded, lengths, log_probs):
        found[line] = _read(row.tolist(), pairs[line][1], begin, first_line + line)
    return found


def of_each_line(
    translator: Translator,
    sides: Sequence[Sequence[list[int]]],
    lengths: Sequence[int],
    compute: Callable[..., Array],
) -> Iterator[tuple[int, Float32[np.ndarray, "t *width"]]]:
    """Yield the number of each line, with its row of what a program computes on padded batches.

    The longest lines come first, so that a lack of memory shows at once. Shapes come from short
    ladders, so that a corpus needs a handful of compilations.

    Args:
      sides: ids of each line, for each array that the program takes.
      lengths: the number of ids of each line on its longer side; lines of 0 are left out.
      compute: starts the program with arrays `[rows, length]` on the devices of the translator.
    """
    config, mesh = translator.config, translator.mesh
    most = min(config.decoding.tokens_per_batch, config.parallel.pass_tokens or _TOKENS_PER_BATCH)
    order = [line for line, length in enumerate(lengths) if length]
    order.sort(key=lambda line: -lengths[line])

    def launched() -> Iterator[tuple[list[int], Array]]:
        done, parts = 0, row_parts(mesh)
        while done < len(order):
            length = ladder_length(lengths[order[done]])
            capacity = max(1, most // length)
            lines = order[done : done + capacity]
            done += len(lines)
            rows = -(-min(capacity, 1 << (len(lines) - 1).bit_length()) // parts) * parts
            arrays = (padded([side[line] for line in lines], rows, length) for side in sides)
            yield lines, compute(*(put_rows(array, mesh) for array in arrays))

    for lines, computed in prefetch_one(launched()):
        yield from zip(lines, on_host(computed), strict=False)


@partial(InterceptedJit, static_argnames="model")
def _log_probs(
    model: DecodingModel,
    params: Parameters,
    inputs: Int32[Array, "b s"],
    targets: Int32[Array, "b t"],
) -> Float32[Array, "b t"]:
    batch = Batch(one_a_row(inputs), one_a_row(targets))
    return -model.losses(params, batch, 0.0)[1]


def _read(row: list[float], target: list[int], begin: int, number: int) -> ForcedScore:
    """Return the score of a target from those of its tokens.

    Args:
      begin: the number of tokens that every target begins with; a blank one has none.
    """
    begin = min(begin, len(target) - 1)
    token_log_probs = (*[0.0] * begin, *row[begin : len(target)])
    log_prob = sum(token_log_probs)
    if not math.isfinite(log_prob):
        raise diverged(number)
    return ForcedScore(log_prob, token_log_probs, tuple(target))
