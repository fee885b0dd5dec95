"""A trained model that translates text: lines in, lines out."""

import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from t2t_jax.config import Config, DecodingConfig, ModelConfig
from t2t_jax.data.vocabulary import BOS_ID, Vocabulary
from t2t_jax.decoding.continuous_batching import Sentence, decode
from t2t_jax.decoding.search import SearchResult
from t2t_jax.errors import UserError
from t2t_jax.modules.ensemble import Ensemble, Model, join_parameters, prepare_parameters
from t2t_jax.modules.matrices import Quantize
from t2t_jax.modules.transformer import Parameters, Transformer
from t2t_jax.parallel.mesh import mesh_of


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
        self._for_decoding: dict[Quantize, Parameters] = {}
        self.mesh = mesh_of(self.params)
        self.longest_sentence = min(each.longest_sentence for each in configs)
        self.steps = tuple(steps)

    def _decoding_parameters(self, quantize: Quantize) -> Parameters:
        if quantize not in self._for_decoding:
            prepare = jax.jit(partial(prepare_parameters, self.model, quantize=quantize))
            self._for_decoding[quantize] = prepare(self.params)
        return self._for_decoding[quantize]

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
        found: list[list[Hypothesis]] = [[_NOTHING] for _ in lines]
        for line, best in self._search(sources, decoding, num_best, first_line, seed):
            found[line] = self._read(best, first_line + line)
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

    def _search(
        self,
        sources: list[list[int]],
        decoding: DecodingConfig,
        num_best: int,
        first_line: int,
        seed: int,
    ) -> Iterator[tuple[int, SearchResult]]:
        """What is found for each line but blank ones, in any order."""
        lines = [line for line, source in enumerate(sources) if not is_blank(source)]
        extra = decoding.max_extra_length
        sentences = [
            Sentence(sources[line], len(sources[line]) + extra, first_line + line) for line in lines
        ]
        params = self._decoding_parameters(decoding.quantize)
        what = self.model, decoding, params, self.mesh, sentences
        for index, best in decode(*what, num_best, seed):
            yield lines[index], best

    def _read(self, best: SearchResult, number: int) -> list[Hypothesis]:
        """The hypotheses of a line of this number; places that hold none are left out.

        Raises:
          UserError: there are none.
        """
        places = zip(*(array.tolist() for array in best), strict=True)
        kept = [
            (tuple(tokens[:length]), score, log_prob)
            for tokens, score, log_prob, length in places
            if length and math.isfinite(log_prob)
        ]
        if not kept:
            raise diverged(number)
        texts = self.vocabulary.decode([tokens for tokens, _, _ in kept])
        return [
            # A vocabulary that spells bytes can write a line break.
            Hypothesis(text.replace("\n", " "), score, log_prob, tokens)
            for text, (tokens, score, log_prob) in zip(texts, kept, strict=True)
        ]


def is_blank(tokens: list[int]) -> bool:
    """Whether an encoded line is nothing but the end of sentence."""
    return len(tokens) == 1


def diverged(number: int) -> UserError:
    """Why a line whose probabilities are not finite is refused."""
    return UserError(
        f"the model gives no finite probabilities for line {number}; its training has "
        "diverged: use an earlier step, or train again at a lower learning rate"
    )


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
