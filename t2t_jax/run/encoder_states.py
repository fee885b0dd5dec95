"""The output of a model's encoder for lines of text: a vector for each subword."""

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
    """The output of the encoder for n lines, each of which has a row."""

    states: Float32[np.ndarray, "n s d_model"]
    """The vector of each subword; zeros after the end of a line."""
    lengths: Int32[np.ndarray, " n"]
    """The number of subwords of each line, begin and end of sentence included."""
    tokens: list[list[int]]
    """The ids of these subwords, whose texts are `translator.vocabulary.pieces(tokens)`."""


def encoder_states(
    translator: Translator, lines: Iterable[str], *, first_line: int = 1
) -> EncoderStates:
    """Compute the output of a model's encoder for lines of text, without dropout.

    Args:
      translator: the model, with an encoder over text.
      lines: sentences. The states of a line depend on the line alone.
      first_line: number of the first line, by which errors name them.

    Raises:
      TypeError: the model is none, or a line is no text.
      UserError: the model has no encoder of text, or is an ensemble, or a line is too long.
    """
    if not isinstance(translator, Translator):
        raise TypeError(f"{translator!r:.80} is no model; give one that t2t_jax.load returns")
    translator.check_process()
    network = _network(translator)
    tokens = _sources(translator, arguments.texts(lines, "lines", first_line), first_line)
    for number, one in enumerate(tokens, first_line):
        long_lines.check_one_pass(f"line {number}", len(one), translator.longest_sentence)
    lengths = [len(one) for one in tokens]
    shape = len(tokens), max(lengths, default=0), network.config.d_model
    states = np.zeros(shape, np.float32)

    def encoded(ids: Int32[Array, "b s"]) -> Float[Array, "b s d_model"]:
        return _encoded(network, translator.params, ids)

    with within_memory(decoding=True):
        for line, row in scoring.of_each_line(translator, [tokens], lengths, encoded):
            states[line, : lengths[line]] = row[: lengths[line]]
    return EncoderStates(states, np.array(lengths, np.int32), tokens)


def _network(translator: Translator) -> transformer.TokenNetwork:
    """Return the network of a model, or refuse one without an encoder of its own."""
    if isinstance(translator.model, Ensemble):
        raise UserError("an ensemble has no encoder of its own; load one of its models")
    network: transformer.TokenNetwork = translator.model.network
    if network.config.stacks[0].reads_target:
        kind = network.config.architecture
        raise UserError(f"model.architecture={kind!r} has no encoder; load a model that has one")
    return network


def _sources(translator: Translator, lines: list[str], first_line: int) -> list[list[int]]:
    """Return the ids that the encoder reads of each line."""
    if translator.config.model.decodes:
        translator.check_translates()
        return translator.encode(lines)
    task: Any = task_of(translator.config.data.corpus, translator.config.data.task)
    return [x.tolist() for x in task.unlabelled(translator, lines, first_line).sentences]


@partial(interceptors.InterceptedJit, static_argnums=0)
def _encoded(
    network: transformer.TokenNetwork, params: parameters.Parameters, tokens: Int32[Array, "b s"]
) -> Float[Array, "b s d_model"]:
    encoded = network.apply({"params": params}, one_a_row(tokens), method="encode")
    assert isinstance(encoded, Array)
    return encoded.astype("float32")
