"""Compute the log-probabilities of given translations under a model (forced decoding)."""

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
from jaxtyping import Array, Float32, Int32

from t2t_jax.batch import Batch, one_a_row, padded
from t2t_jax.data.layout import bucket_length
from t2t_jax.decoding.arguments import texts
from t2t_jax.decoding.long_lines import check_one_pass
from t2t_jax.decoding.translator import Translator, diverged, is_blank
from t2t_jax.errors import UserError
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.interceptors import InterceptedJit
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel.mesh import on_host, prefetch_one, put_rows, row_parts

# Scoring needs the logits of all positions at once; a search needs only those of one position. With
# a vocabulary of 37,000 subwords, the logits of this many tokens take 0.6 GB in float32.
_TOKENS_PER_BATCH = 4096


class ForcedScore(NamedTuple):
    """The log-probability of a target, given its source."""

    log_prob: float
    """Log-probability of the whole target under the model, in nats."""
    token_log_probs: tuple[float, ...]
    """Log-probability of each token; 0 for tokens that begin every target, such as a language
    tag."""
    tokens: tuple[int, ...]
    """Token ids, including the end-of-sentence token."""


def score(
    translator: Translator, sources: Iterable[str], targets: Iterable[str], *, first_line: int = 1
) -> list[ForcedScore]:
    """Compute the log-probability of each target line, given its source line.

    A line break within a line counts as a space. If both lines are blank, the probability is 1;
    another blank line is scored as an end-of-sentence token.

    Args:
      translator: the model, or an ensemble, whose token distributions are averaged.
      sources: source lines.
      targets: a translation of each source line.
      first_line: number of the first line, for error messages.

    Raises:
      TypeError: an argument is of the wrong type.
      UserError: the model does not translate or has diverged, the numbers of lines differ, or a
        line is not text or is too long.
    """
    translator.check_translates()
    sources, targets = texts(sources, "sources", first_line), texts(targets, "targets", first_line)
    if len(sources) != len(targets):
        raise UserError(
            f"{len(sources):,} sources and {len(targets):,} targets are not pairs; give a target "
            "line for every source line"
        )
    sides = translator.encode(sources), translator.encode_targets(targets)
    pairs = list(zip(*sides, strict=True))
    for line_number, pair in enumerate(pairs, first_line):
        for side, tokens in zip(("source", "target"), pair, strict=True):
            check_one_pass(f"{side} line {line_number}", len(tokens), translator.longest_sentence)
    lengths = [
        0 if is_blank(source) and is_blank(target) else max(len(source), len(target))
        for source, target in pairs
    ]
    scores = [ForcedScore(0.0, (), ())] * len(pairs)
    num_given = len(translator.vocabulary.target_begin)
    log_probs = partial(_log_probs, translator.model, translator.params)
    for line, row in compute_rows(translator, sides, lengths, log_probs):
        scores[line] = _score(row.tolist(), pairs[line][1], num_given, first_line + line)
    return scores


def compute_rows(
    translator: Translator,
    sides: Sequence[Sequence[list[int]]],
    lengths: Sequence[int],
    compute: Callable[..., Array],
) -> Iterator[tuple[int, Float32[np.ndarray, "t *width"]]]:
    """Run a program on padded batches of lines; yield the index and the output row of each line.

    The longest lines come first, to run out of memory early.

    Args:
      sides: token ids of each line, for each input array of the program, such as source and target.
      lengths: the length of each line's longer side; lines of length 0 are skipped.
      compute: calls the program with arrays `[rows, length]` on the translator's devices.
    """
    config, mesh = translator.config, translator.mesh
    tokens = min(config.decoding.tokens_per_batch, config.parallel.pass_tokens or _TOKENS_PER_BATCH)
    queue = sorted((line for line, n in enumerate(lengths) if n), key=lambda line: -lengths[line])

    def launch() -> Iterator[tuple[list[int], Array]]:
        start, parts = 0, row_parts(mesh)
        while start < len(queue):
            length = bucket_length(lengths[queue[start]])
            max_rows = max(1, tokens // length)
            lines = queue[start : start + max_rows]
            start += len(lines)
            # Few different numbers of rows, all of which the mesh can split.
            rows = -(-min(max_rows, 1 << (len(lines) - 1).bit_length()) // parts) * parts
            arrays = (padded([side[line] for line in lines], rows, length) for side in sides)
            yield lines, compute(*(put_rows(array, mesh) for array in arrays))

    for lines, rows in prefetch_one(launch()):
        yield from zip(lines, on_host(rows), strict=False)  # the last rows may be padding


@partial(InterceptedJit, static_argnames="model")
def _log_probs(
    model: DecodingModel,
    params: Parameters,
    inputs: Int32[Array, "b s"],
    targets: Int32[Array, "b t"],
) -> Float32[Array, "b t"]:
    batch = Batch(one_a_row(inputs), one_a_row(targets))
    return -model.losses(params, batch, 0.0)[1]


def _score(log_probs: list[float], target: list[int], num_given: int, line: int) -> ForcedScore:
    """Make the score of a target from the log-probabilities of its tokens.

    Args:
      log_probs: log-probabilities of the target's tokens, then of padding.
      num_given: number of tokens with which every target begins, such as a language tag.
    """
    num_given = min(num_given, len(target) - 1)  # a blank target has only its end
    token_log_probs = (*[0.0] * num_given, *log_probs[num_given : len(target)])
    log_prob = sum(token_log_probs)
    if not math.isfinite(log_prob):
        raise diverged(line)
    return ForcedScore(log_prob, token_log_probs, tuple(target))
