"""Encoder outputs for lines of text: one vector per subword."""

from collections.abc import Iterable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Array, Float, Float32, Int32

from t2t_jax.batch import one_a_row
from t2t_jax.decoding import arguments, long_lines, scoring
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.modules import interceptors, parameters, transformer
from t2t_jax.modules.ensemble import Ensemble
from t2t_jax.parallel.devices import within_memory
from t2t_jax.tasks import task_of


class EncoderStates(NamedTuple):
    """The encoder outputs for n lines of text: a vector for each subword."""

    states: Float32[np.ndarray, "n s d_model"]
    """The vector of each subword, padded with zeros."""
    lengths: Int32[np.ndarray, " n"]
    """The number of subwords of each line, including special tokens."""
    tokens: list[list[int]]
    """The ids of the subwords; `translator.vocabulary.pieces(tokens)` returns their text."""


def encoder_states(
    translator: Translator, lines: Iterable[str], *, first_line: int = 1
) -> EncoderStates:
    """Compute the encoder outputs for lines of text, without dropout.

    Args:
      translator: a model with a text encoder.
      lines: sentences. The states of a line do not depend on other lines.
      first_line: the number of the first line in error messages.

    Raises:
      TypeError: the translator is not a model, or a line is not a string.
      UserError: the model has no text encoder or is an ensemble, or a line is too long.
    """
    if not isinstance(translator, Translator):
        raise TypeError(f"{translator!r:.80} is not a model; give one that t2t_jax.load returns")
    translator.check_process()
    network = _network(translator)
    tokens = _sources(translator, arguments.texts(lines, "lines", first_line), first_line)
    for line_number, line_ids in enumerate(tokens, first_line):
        long_lines.check_one_pass(f"line {line_number}", len(line_ids), translator.longest_sentence)
    lengths = [*map(len, tokens)]
    shape = len(tokens), max(lengths, default=0), network.config.d_model
    states = np.zeros(shape, np.float32)

    def encode(batch_ids: Int32[Array, "b s"]) -> Float[Array, "b s d_model"]:
        return _encoded(network, translator.params, batch_ids)

    with within_memory(decoding=True):
        for index, vectors in scoring.compute_rows(translator, [tokens], lengths, encode):
            states[index, : lengths[index]] = vectors[: lengths[index]]
    return EncoderStates(states, np.array(lengths, np.int32), tokens)


def _network(translator: Translator) -> transformer.TokenNetwork:
    if isinstance(translator.model, Ensemble):
        raise UserError("an ensemble has several encoders; load one of its models")
    network: transformer.TokenNetwork = translator.model.network
    if network.config.stacks[0].reads_target:
        kind = network.config.architecture
        raise UserError(f"model.architecture={kind!r} has no encoder; load a model that has one")
    return network


def _sources(translator: Translator, lines: list[str], first_line: int) -> list[list[int]]:
    if translator.config.model.decodes:
        translator.check_translates()
        return translator.encode(lines)
    task: Any = task_of(translator.config.data.corpus, translator.config.data.task)
    return [ids.tolist() for ids in task.unlabelled(translator, lines, first_line).sentences]


@partial(interceptors.InterceptedJit, static_argnums=0)
def _encoded(
    network: transformer.TokenNetwork, params: parameters.Parameters, tokens: Int32[Array, "b s"]
) -> Float[Array, "b s d_model"]:
    encoded = network.apply({"params": params}, one_a_row(tokens), method="encode")
    assert isinstance(encoded, Array)
    return encoded.astype("float32")
