"""A trained model that translates text: lines in, lines out.

Sentences are sorted by length and decoded in batches. The shapes of the batches come from short
ladders (a few lengths, powers of two of rows), so that a corpus needs a handful of compilations and
a single sentence does not cost a whole batch.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Bool, Float, Int32, UInt32

from t2t_jax.config import Config, DecodingConfig, ModelConfig
from t2t_jax.data.batching import ladder_length
from t2t_jax.data.vocabulary import BOS_ID, EOS_ID, PAD_ID, Vocabulary
from t2t_jax.decoding.search import SearchResult, beam_search, greedy_search, sample
from t2t_jax.errors import UserError
from t2t_jax.modules.ensemble import Ensemble, Model, empty_cache, join_parameters
from t2t_jax.modules.transformer import Parameters, Transformer, decoding_parameters
from t2t_jax.parallel.mesh import mesh_of, on_host, put_rows, row_parts

_T = TypeVar("_T")


class Hypothesis(NamedTuple):
    """One translation of a line."""

    text: str
    """The translation, without a line break."""
    score: float
    """What ranks hypotheses: `log_prob` over the length penalty, or without a beam `log_prob`."""
    log_prob: float
    """Log-probability of the whole translation under the model, in nats."""
    tokens: tuple[int, ...]
    """Its subwords, with the end of sentence if it was reached."""


_NOTHING = Hypothesis("", 0.0, 0.0, ())


class _Batch(NamedTuple):
    """Sentences decoded together, one a row. Rows beyond them are empty and generate nothing."""

    lines: list[int]  # the line each row is of
    inputs: Int32[np.ndarray, "b s"]
    max_lengths: Int32[np.ndarray, " b"]
    numbers: Int32[np.ndarray, " b"]  # of the lines; folded into the key when sampling
    max_length: int


def make_model(config: Config, vocab_size: int) -> Transformer:
    """The network of a run, over a vocabulary of so many entries."""
    return Transformer(config.model, vocab_size, BOS_ID, config.parallel.remat)


class Translator:
    """A model, or an ensemble of models, with its vocabulary and parameters.

    Attributes:
      config: the config the model was trained with; its `decoding` holds the defaults. Of an
        ensemble, that of the first model.
      vocabulary: the shared subword vocabulary.
      model: the network.
      params: its parameters, on the devices.
      mesh: these devices; what is decoded together is split over them by rows. Where they belong to
        several processes, all of these translate the same lines at the same time.
      longest_sentence: most tokens of a sentence that every model has positions for.
      steps: the training steps whose checkpoints `params` is the average of, where known. Of an
        ensemble, those of one model after the other.
    """

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        params: Parameters,
        *,
        others: Sequence[tuple[ModelConfig, Parameters]] = (),
        steps: Sequence[int] = (),
    ) -> None:
        """Put the parameters on the device, unless they are there.

        Args:
          config: the config the model was trained with.
          vocabulary: the vocabulary it was trained with.
          params: its parameters.
          others: more models of this vocabulary. The distribution of every token is then the mean
            of the distributions that the models give.
          steps: the training steps that the parameters are of.
        """
        self.config = config
        self.vocabulary = vocabulary
        self.model: Model = make_model(config, len(vocabulary))
        configs = (config.model, *(other for other, _ in others))
        if others:
            self.model = Ensemble(configs, len(vocabulary), BOS_ID)
            params = join_parameters([params, *(other for _, other in others)])
        self.params: Parameters = jax.tree.map(jnp.asarray, params)
        self.mesh = mesh_of(self.params)
        self.longest_sentence = min(each.longest_sentence for each in configs)
        self.steps = tuple(steps)

    @cached_property
    def _decoding_parameters(self) -> Parameters:
        return jax.jit(decoding_parameters)(self.params)

    def translate(
        self, lines: Sequence[str], *, seed: int = 0, first_line: int = 1, **overrides: Any
    ) -> list[str]:
        """Translate lines, each into exactly one line; see `nbest`.

        Args:
          lines: sentences. A line of nothing but white space stays empty.
          seed: of sampling (`temperature` above 0).
          first_line: number of the first line, where these are a part of something longer.
          overrides: fields of `DecodingConfig`.

        Returns:
          The translations, in the order of the lines.
        """
        found = self.nbest(lines, 1, seed=seed, first_line=first_line, **overrides)
        return [hypotheses[0].text for hypotheses in found]

    def nbest(
        self,
        lines: Sequence[str],
        num_best: int,
        *,
        seed: int = 0,
        first_line: int = 1,
        **overrides: Any,
    ) -> list[list[Hypothesis]]:
        """The best translations of each line.

        What is found for a line depends on the line, on its number when sampling, and on nothing
        else that is translated with it.

        Args:
          lines: sentences; a line break within one counts as a space. A line of nothing but white
            space has one empty translation with probability 1, and costs nothing.
          num_best: translations for each line, at most the beam size.
          seed: of sampling (`temperature` above 0).
          first_line: number of the first line, where these are a part of something longer. Errors
            name lines by it.
          overrides: fields of `DecodingConfig`.

        Returns:
          For each line between 1 and `num_best` hypotheses, best first.

        Raises:
          UserError: an override is refused, the search cannot give `num_best` hypotheses, or a line
            is longer than a learned position table: nothing has been translated then. Or the model
            has diverged, and its probabilities for a line are not finite.
        """
        decoding = self.configured(**overrides).decoding
        _check_num_best(num_best, decoding)
        sources = self.encode(lines)
        self._check_lengths(sources, decoding, first_line)
        launched = (
            (batch, self._launch(batch, decoding, seed))
            for batch in self._batches(sources, decoding, first_line)
        )
        found: list[list[Hypothesis]] = [[_NOTHING] for _ in lines]
        for batch, result in one_ahead(launched):
            for line, hypotheses in zip(
                batch.lines, self._read(batch, result, num_best), strict=True
            ):
                found[line] = hypotheses
        return found

    def encode(self, lines: Sequence[str]) -> list[list[int]]:
        """Subword ids of each line, with the end of sentence; a line break counts as a space."""
        if isinstance(lines, str):
            raise TypeError("lines is one string; give a list of lines, as in [line]")
        return self.vocabulary.encode([line.replace("\n", " ").strip() for line in lines])

    def configured(self, **overrides: Any) -> Config:
        """The config with other fields of `DecodingConfig`.

        Raises:
          UserError: an override is refused.
        """
        return self.config.replace({f"decoding.{name}": value for name, value in overrides.items()})

    def _check_lengths(
        self, sources: list[list[int]], decoding: DecodingConfig, first_line: int
    ) -> None:
        longest = self.longest_sentence
        limit = longest - decoding.max_extra_length
        for number, source in enumerate(sources, first_line):
            if len(source) > limit:
                raise UserError(
                    f"line {number} has {len(source)} subwords, but the learned positions of this "
                    f"model allow {limit} (model.max_positions={longest} less "
                    f"max_extra_length={decoding.max_extra_length}); split the line"
                )

    def _batches(
        self, sources: list[list[int]], decoding: DecodingConfig, first_line: int
    ) -> Iterator[_Batch]:
        # An output has more room than its source, and the decode cache takes all of it.
        extra = decoding.max_extra_length
        for lines, rows, length in batches_by_length(
            [0 if is_blank(source) else len(source) for source in sources],
            decoding.tokens_per_batch,
            extra,
            row_parts(self.mesh),
        ):
            max_lengths, numbers = np.zeros((2, rows), np.int32)
            max_lengths[: len(lines)] = [len(sources[line]) + extra for line in lines]
            numbers[: len(lines)] = [first_line + line for line in lines]
            inputs = padded([sources[line] for line in lines], rows, length)
            yield _Batch(lines, inputs, max_lengths, numbers, ladder_length(length + extra))

    def _launch(self, batch: _Batch, decoding: DecodingConfig, seed: int) -> SearchResult:
        return search(
            self.model,
            decoding,
            batch.max_length,
            self._decoding_parameters,
            put_rows(batch.inputs, self.mesh),
            put_rows(batch.max_lengths, self.mesh),
            np.uint32(seed),
            put_rows(batch.numbers, self.mesh),
        )

    def _read(self, batch: _Batch, result: SearchResult, num_best: int) -> list[list[Hypothesis]]:
        """The hypotheses of each line of a batch; places that hold none are left out.

        Raises:
          UserError: a line has none.
        """
        best = jax.tree.map(lambda x: x[: len(batch.lines), :num_best], on_host(result))
        tokens, scores, log_probs, lengths = (
            array.reshape(-1, *array.shape[2:]).tolist() for array in best
        )
        places = [
            # A vocabulary that spells bytes can write a line break.
            Hypothesis(text.replace("\n", " "), score, log_prob, tuple(ids[:length]))
            for text, score, log_prob, ids, length in zip(
                self.vocabulary.decode(tokens), scores, log_probs, tokens, lengths, strict=True
            )
        ]
        num_best = best.lengths.shape[1]
        rows = (places[first : first + num_best] for first in range(0, len(places), num_best))
        found = [[one for one in row if one.tokens and math.isfinite(one.log_prob)] for row in rows]
        for number, hypotheses in zip(batch.numbers.tolist(), found, strict=False):
            if not hypotheses:
                raise diverged(number)
        return found


def is_blank(tokens: list[int]) -> bool:
    """Whether an encoded line is nothing but the end of sentence."""
    return len(tokens) == 1


def batches_by_length(
    lengths: Sequence[int], tokens_per_batch: int, extra: int = 0, parts: int = 1
) -> Iterator[tuple[list[int], int, int]]:
    """Which lines go together into a batch, and how large it is.

    Args:
      lengths: tokens of each line; a line of 0 tokens is left out.
      tokens_per_batch: most positions, `extra` and padding included, of all rows together.
      extra: positions that each row needs besides those of the line.
      parts: into which the rows of a batch will be cut, all of the same size.

    Yields:
      Lines, and the number of rows and the length of the batch. Longest first: what takes most
      memory and most compilation is met at once.
    """
    order = [line for line, length in enumerate(lengths) if length]
    order.sort(key=lambda line: -lengths[line])
    done = 0
    while done < len(order):
        length = ladder_length(lengths[order[done]])
        capacity = max(1, tokens_per_batch // ladder_length(length + extra))
        lines = order[done : done + capacity]
        done += len(lines)
        rows = min(capacity, 1 << (len(lines) - 1).bit_length())
        yield lines, -(-rows // parts) * parts, length


def padded(sentences: Sequence[list[int]], rows: int, length: int) -> Int32[np.ndarray, "b t"]:
    """Sentences, one a row; the rest is padding."""
    tokens = np.full((rows, length), PAD_ID, np.int32)
    for row, sentence in enumerate(sentences):
        tokens[row, : len(sentence)] = sentence
    return tokens


def diverged(number: int) -> UserError:
    """Why a line whose probabilities are not finite is refused."""
    return UserError(
        f"the model gives no finite probabilities for line {number}; its training has "
        "diverged: use an earlier step, or train again at a lower learning rate"
    )


def one_ahead(items: Iterator[_T]) -> Iterator[_T]:
    """The items, each held back until the next is made: while one is awaited, another computes."""
    held: list[_T] = []
    for item in items:
        yield from held
        held = [item]
    yield from held


def _check_num_best(num_best: int, decoding: DecodingConfig) -> None:
    if num_best < 1:
        raise UserError(f"num_best={num_best} is not positive")
    if decoding.temperature > 0 and num_best > 1:
        raise UserError(
            f"num_best={num_best} with temperature={decoding.temperature}: sampling gives one "
            "translation a line; use temperature=0, or sample several times with other seeds"
        )
    if num_best > decoding.beam_size:
        raise UserError(
            f"num_best={num_best} is more than beam_size={decoding.beam_size}; raise beam_size"
        )


@partial(jax.jit, static_argnames=("model", "decoding", "max_length"))
def search(
    model: Model,
    decoding: DecodingConfig,
    max_length: int,
    params: Parameters,
    inputs: Int32[Array, "b s"],
    max_lengths: Int32[Array, " b"],
    seed: UInt32[Array, ""],
    numbers: Int32[Array, " b"],
) -> SearchResult:
    """Translate a batch with the model as step function; sample where the temperature asks for it.

    Args:
      model: the network.
      decoding: beam size, length penalty, temperature and the like.
      max_length: room for generated tokens t, which no limit exceeds.
      params: the network's `decoding_parameters`.
      inputs: sources, padded.
      max_lengths: the most tokens to generate for each sentence, end of sentence included.
      seed: of sampling.
      numbers: of the sentences, which choose the random numbers of each when sampling.
    """
    variables = {"params": params}
    segments = (inputs != PAD_ID).astype(jnp.int32)
    memory = model.apply(variables, inputs, segments, method="memory")

    def step(
        tokens: Int32[Array, "b k"],
        position: Int32[Array, ""],
        ancestry_mask: Bool[Array, "b k t k"],
        cache: Any,
    ) -> tuple[Float[Array, "b k vocab"], Any]:
        return cast(
            tuple[Array, Any],
            model.apply(variables, tokens, position, ancestry_mask, cache, memory, method="step"),
        )

    batch_size = inputs.shape[0]
    beam_size = decoding.beam_size
    strategy: Callable[..., SearchResult] = greedy_search
    if decoding.temperature > 0:
        beam_size = 1
        strategy = partial(
            sample,
            keys=jax.vmap(jax.random.fold_in, (None, 0))(jax.random.key(seed), numbers),
            temperature=decoding.temperature,
            top_k=decoding.top_k,
            top_p=decoding.top_p,
        )
    elif beam_size > 1:
        strategy = partial(beam_search, beam_size=beam_size, alpha=decoding.length_penalty)
    return strategy(
        step,
        empty_cache(model, batch_size, beam_size, max_length),
        batch_size=batch_size,
        max_lengths=max_lengths,
        max_length=max_length,
        bos_id=BOS_ID,
        eos_id=EOS_ID,
        pad_id=PAD_ID,
    )
