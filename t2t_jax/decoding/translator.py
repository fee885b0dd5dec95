"""A trained model that translates lines of text into lines of text."""

import copy
import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
from jaxtyping import Array

from t2t_jax.config import Config, DecodingConfig, ModelConfig, sections
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding import forbidden, long_lines
from t2t_jax.decoding.arguments import check_num_best, texts, whole_number
from t2t_jax.decoding.open_search import Limits, OpenSearch
from t2t_jax.decoding.programs import check_search_memory
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.scheduler import decode, plan
from t2t_jax.decoding.search.hypotheses import SearchResult
from t2t_jax.errors import DivergedError, UserError
from t2t_jax.modules.decoding_model import DecodingModel, TokenSources
from t2t_jax.modules.ensemble import Ensemble, join_parameters
from t2t_jax.modules.models import make_scoring_model
from t2t_jax.modules.parameters import Parameters
from t2t_jax.parallel import devices, mesh


class Hypothesis(NamedTuple):
    """One translation of a line."""

    text: str
    """The translation, without a line break."""
    score: float
    """`log_prob` over the length penalty, which ranks hypotheses; without a beam, `log_prob`. For a
    split line, the sum over its parts."""
    log_prob: float
    """Log-probability of the whole translation under the model, in nats."""
    tokens: tuple[int, ...]
    """Ids of the subwords, with the end of sentence if it was reached. For a split line, the ids of
    all parts, each with its end of sentence."""


_NOTHING = Hypothesis("", 0.0, 0.0, ())


class Translator:
    """A model, or an ensemble of models, with its vocabulary and parameters.

    Attributes are read-only, as translations use programs and parameters that were made from them.

    Attributes:
      config: the config of the training; its `decoding` holds the defaults. For an ensemble, the
        config of the first model.
      vocabulary: the shared subword vocabulary.
      model: the model, a `DecodingModel`, or a `ScoringModel` for an encoder-only network.
      mesh: the devices of `params`, over which the rows of a batch are split. If they belong to
        several processes, all processes translate the same lines at the same time.
      longest_sentence: the most tokens for which every model has positions.
      steps: the training steps of the averaged checkpoints or of the moving average, if known. For
        an ensemble, those of all models in order.
      ema_decays: decays of the moving averages in `params`, by model.
    """

    def __init__(
        self,
        config: Config,
        vocabulary: Vocabulary,
        params: Parameters,
        *,
        others: Sequence[tuple[ModelConfig, Parameters]] = (),
        steps: Sequence[int] = (),
        ema_decays: Sequence[float] = (),
    ) -> None:
        """Put the parameters on the device, unless they are there.

        Args:
          others: more models with this vocabulary; the distribution of every token is the mean of
            those of all models.
        """
        self.config = config
        self.vocabulary = vocabulary
        params = join_parameters([params, *(own for _, own in others)]) if others else params
        self._params: Parameters = jax.tree.map(_immutable, params)
        self._arrays = _by_path(self._params)
        self._for_decoding: dict[sections.Quantize, Parameters] = {}
        self.mesh = mesh.mesh_of(self.params)
        configs = config.model, *(other for other, _ in others)
        if others and not all(one.decodes for one in configs):
            raise UserError("an ensemble is for models that write text; use one encoder at a time")
        models = [make_scoring_model(one, len(vocabulary), self.mesh) for one in configs]
        self.model: Any = Ensemble(tuple(cast(Any, models))) if others else models[0]
        self.longest_sentence = self.model.longest_sentence
        self.steps = tuple(steps)
        self.ema_decays = tuple(ema_decays)
        self._process = os.getpid()
        self._score: Callable[[], str] = str  # which returns no text

    def __repr__(self) -> str:
        """Return the sizes, the steps and the score on dev."""
        size = sum(array.size for array in self._arrays.values())
        sizes = f"{size:,} parameters, {len(self.vocabulary):,} subwords"
        steps = "".join(f", step {step:,}" for step in self.steps)
        return f"<Translator: {sizes}{steps}{self._score()}>"

    def __setattr__(self, name: str, value: object) -> None:
        """Set an attribute for the first time, and refuse to replace one."""
        if name == "params" or name in vars(self):
            advice = "use with_params for other parameters, and arguments of calls for settings"
            raise AttributeError(f"{name} of a translator is read-only; {advice}")
        super().__setattr__(name, value)

    @property
    def params(self) -> Parameters:
        """Return the parameters in the form of training, on the devices.

        Do not change these dictionaries; change a copy, `jax.tree.map(lambda x: x, params)`, and
        pass it to `with_params`.

        Raises:
          UserError: the dictionaries were changed in place.
        """
        found, expected = _by_path(self._params), self._arrays
        for path in expected | found:
            if found.get(path) is not expected.get(path):
                raise UserError(
                    f"translator.params was changed in place at {path}; load the model again, "
                    "change a copy of the dictionaries, and use translator.with_params(copy)"
                )
        return self._params

    def with_params(self, params: Parameters) -> "Translator":
        """Return a translator that differs only in its parameters, such as after fine-tuning.

        The new translator has empty `steps` and `ema_decays`, as no checkpoint has its parameters.

        Args:
          params: arrays in dictionaries like those of `self.params`, with the same shapes and
            dtypes. They are placed on the devices of `self.params`. Later changes of the
            dictionaries or of NumPy arrays have no effect.

        Raises:
          UserError: a parameter is missing, unknown, or has another shape or dtype.
        """
        new, old = _by_path(params), self._arrays
        for path in old | new:
            kinds = [_kind(arrays.get(path)) for arrays in (new, old)]
            if kinds[0] != kinds[1]:
                raise UserError(
                    f"params has {kinds[0]} at {path}, and the model {kinds[1]}; give arrays in "
                    "dictionaries like those of translator.params"
                )
        leaves = [_placed(_immutable(new[path]), x.sharding) for path, x in old.items()]
        params = jax.tree.unflatten(jax.tree.structure(self._params), leaves)
        state = {"_params": params, "_arrays": _by_path(params), "_for_decoding": {}, "_score": str}
        return self.replaced(**state, steps=(), ema_decays=())

    def replaced(self, **attributes: object) -> "Translator":
        """Return a copy with some attributes replaced. The caller ensures that they fit the others.

        Args:
          attributes: values by name.
        """
        other = copy.copy(self)
        vars(other).update(attributes)
        return other

    def check_process(self) -> None:
        """Refuse to work in a fork of the translator's process, which would hang."""
        if os.getpid() != self._process:
            raise UserError(
                "this translator was made before the process was forked, and JAX's threads do not "
                'outlive a fork; start workers with multiprocessing\'s "spawn", and have each '
                "load the model itself"
            )

    def check_translates(self) -> None:
        """Raise a `UserError` if the model does not translate text, or not in this process."""
        self.check_process()
        data = self.config.data
        if not data.facts.writes_text:
            raise UserError(
                f"the model was trained with data.task={data.task}, not to translate; use: t2t-jax "
                f"{data.facts.commands[0]}"
            )
        if not isinstance(self.model.sources, TokenSources):
            raise UserError(
                f"the model was trained with data.task={data.task}, whose sources are no text; "
                "evaluate it on a split of its corpus"
            )

    def prepared(self, quantize: sections.Quantize) -> Parameters:
        """Return the parameters in the form for searches; see `DecodingModel.prepare`."""
        params = self.params  # also checks that nobody changed them
        if quantize not in self._for_decoding:
            self._for_decoding[quantize] = _prepare(self.model, params, quantize)
        return self._for_decoding[quantize]

    def between(self, source: str | None, target: str | None) -> "Translator":
        """Return a translator for another language pair, which shares the parameters.

        Only multilingual models, which mark languages with tags, have several pairs.

        Args:
          source: the source language, as the vocabulary's `between` takes it; None keeps it.
          target: the target language; None keeps it.

        Raises:
          UserError: the model does not have the language.
        """
        data = self.config.data
        pair = source or data.source_language, target or data.target_language
        languages = dict(zip(("data.source_language", "data.target_language"), pair, strict=True))
        config, vocabulary = self.config.replace(languages), self.vocabulary.between(*pair)
        return self.replaced(config=config, vocabulary=vocabulary)

    def translate(
        self,
        lines: Iterable[str],
        *,
        prefixes: Iterable[str] | None = None,
        seed: int = 0,
        first_line: int = 1,
        **overrides: Any,
    ) -> list[str]:
        """Translate each line into one line; see `nbest` for the arguments."""
        found = self.nbest(
            lines, 1, prefixes=prefixes, seed=seed, first_line=first_line, **overrides
        )
        return [hypotheses[0].text for hypotheses in found]

    def nbest(
        self,
        lines: Iterable[str],
        num_best: int,
        *,
        prefixes: Iterable[str] | None = None,
        seed: int = 0,
        first_line: int = 1,
        **overrides: Any,
    ) -> list[list[Hypothesis]]:
        """Return the best translations of each line.

        The result of a line depends on the line, its prefix and, when sampling, its number, but not
        on the other lines.

        Args:
          lines: sentences; a line break within one counts as a space. A blank line has one empty
            translation with probability 1. A line of more subwords than `max_source_length` is
            split or refused; see `decoding.long_lines`.
          num_best: translations of each line, at most the beam size. They differ in tokens; two of
            them may have the same text, if the vocabulary spells it in two ways.
          prefixes: for each line the text with which its translation must begin, or "". The
            translation may continue the prefix's last word, and `log_prob` includes the prefix. If
            a line is split, its first part has the prefix.
          seed: seed of sampling (`temperature` above 0), below 2**32.
          first_line: number of the first line, for sampling and error messages.
          overrides: settings of the search; see `configured`.

        Returns:
          For each line between 1 and `num_best` hypotheses, best first.

        Raises:
          TypeError: an argument is of the wrong type.
          UserError: an argument, an override or a line is refused, the search needs too much
            memory, or the model has diverged.
        """
        self.check_translates()
        seed = whole_number(seed, "seed", 0, 2**32 - 1)
        decoding = self.configured(**overrides).decoding
        check_num_best(num_best, decoding)
        lines = texts(lines, "lines", first_line)
        given = self.parts(lines, decoding, first_line, prefixes)
        found: list[list[list[Hypothesis]]] = [[] for _ in lines]
        for part in given:
            found[part.line].append([_NOTHING])
        given = [part for part in given if not is_blank(part.tokens)]
        sentences = [
            Sentence(part.tokens, 0, _number(part, first_line), part.prefix) for part in given
        ]
        extra = decoding.max_extra_length
        sentences = [one._replace(limit=one.length + extra) for one in sentences]
        with devices.within_memory(decoding=True):
            for index, best in self.search(sentences, decoding, num_best, seed):
                part = given[index]
                found[part.line][part.order] = self.read(best, first_line + part.line)
        return [joined_hypotheses(of_line, num_best) for of_line in found]

    def check_lines(self, lines: Iterable[str], *, first_line: int = 1, **overrides: Any) -> None:
        """Refuse the lines that `nbest` would refuse, without translating any.

        Raises:
          TypeError: an argument is of the wrong type.
          UserError: the model does not translate, or an override or a line is refused.
        """
        self.check_translates()
        decoding = self.configured(**overrides).decoding
        self.parts(texts(lines, "lines", first_line), decoding, first_line)

    def encode(self, lines: Iterable[str]) -> list[list[int]]:
        """Encode sources as subword ids with an end of sentence; a line break counts as a space."""
        return self.vocabulary.encode(_stripped(lines))

    def encode_targets(self, lines: Iterable[str]) -> list[list[int]]:
        """Encode targets as subword ids with an end of sentence; a line break counts as a space."""
        return self.vocabulary.encode_targets(_stripped(lines))

    def configured(self, decoding: DecodingConfig | None = None, **overrides: object) -> Config:
        """Return the config with other settings of the search.

        Args:
          decoding: the settings; None takes those of `config`.
          overrides: new values of fields of `DecodingConfig`.

        Raises:
          TypeError: `decoding` is no `DecodingConfig`.
          UserError: a field is refused.
        """
        if decoding is None:
            config = self.config
        elif isinstance(decoding, DecodingConfig):
            config = dataclasses.replace(self.config, decoding=decoding)
        else:
            kind = type(decoding).__name__
            raise TypeError(f"decoding is of type {kind}; give a DecodingConfig")
        return config.replace({f"decoding.{name}": value for name, value in overrides.items()})

    def parts(
        self,
        lines: list[str],
        decoding: DecodingConfig,
        first_line: int = 1,
        prefixes: Iterable[str] | None = None,
    ) -> list[long_lines.LinePart]:
        """Return the parts in which each line is decoded: the whole line, unless it is too long.

        Raises:
          UserError: a line is too long and `decoding.long_lines` refuses it, or the prefixes do not
            match the lines.
        """
        begins: Sequence[list[int]] = [[]] * len(lines)
        if prefixes is not None:
            prefixes = texts(prefixes, "prefixes", first_line)
            if len(prefixes) != len(lines):
                raise UserError(
                    f"{len(lines):,} lines have {len(prefixes):,} prefixes; give one for each "
                    'line, and "" for none'
                )
            begins = [tokens[:-1] for tokens in self.encode_targets(prefixes)]
        longest, sources = self.longest_sentence, self.encode(lines)
        return long_lines.parts(sources, begins, decoding, self.vocabulary, longest, first_line)

    def search(
        self, sentences: Sequence[Sentence], decoding: DecodingConfig, num_best: int, seed: int
    ) -> Iterator[tuple[int, SearchResult]]:
        """Search for the outputs of sentences.

        Args:
          sentences: sentences with a limit of at most their length plus
            `decoding.max_extra_length`. The default prefix is the vocabulary's `target_begin`.

        Yields:
          The index of each sentence, in any order, and its hypotheses.

        Raises:
          UserError: the search needs too much memory.
        """
        lengths = sorted((sentence.length for sentence in sentences), reverse=True)
        for sizes in plan(lengths, decoding, self.mesh)[:1]:  # the longest need most
            check_search_memory(self.model, len(self.vocabulary), decoding, sizes, self.mesh)
        params, begin = self.prepared(decoding.quantize), self.vocabulary.target_begin
        sentences = [one if one.prefix else one._replace(prefix=begin) for one in sentences]
        constraints = forbidden.constraints_of(decoding, self.vocabulary)
        yield from decode(
            self.model, decoding, params, self.mesh, sentences, num_best, seed, constraints
        )

    def open_search(self, decoding: DecodingConfig, limits: Limits, *, seed: int = 0) -> OpenSearch:
        """Start a search that sentences can join at any time; the caller has to close it.

        The prefix of a sentence must be the vocabulary's `target_begin`. For another target
        language, take it from the translator that `between` returns.

        Args:
          decoding: the settings of the search.
          limits: the sizes of the search.
          seed: seed of sampling.
        """
        self.check_process()
        return OpenSearch(
            self.model,
            decoding,
            self.prepared(decoding.quantize),
            self.mesh,
            limits=limits,
            seed=seed,
            constraints=forbidden.constraints_of(decoding, self.vocabulary),
        )

    def read(self, best: SearchResult, number: int = 1) -> list[Hypothesis]:
        """Read the hypotheses of one sentence from a search result, without empty slots.

        Args:
          number: number of the line, for the error.

        Raises:
          UserError: there are no hypotheses, because the model has diverged.
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


@partial(jax.jit, static_argnames=("model", "quantize"))
def _prepare(model: DecodingModel, params: Parameters, quantize: sections.Quantize) -> Parameters:
    return model.prepare(params, quantize)


def _immutable(x: jax.typing.ArrayLike) -> Array:
    """Return a JAX array, which never shares memory with a NumPy array."""
    return x if isinstance(x, jax.Array) else jnp.array(x)


def _placed(x: Array, sharding: jax.sharding.Sharding) -> Array:
    """Put an array on devices, unless it is there; `device_put` would commit it anew."""
    return x if x.sharding == sharding else jax.device_put(x, sharding)


def _by_path(params: Parameters) -> dict[str, Array]:
    """Return the arrays by names such as embedding/embedding, in the order of the leaves."""
    name = partial(jax.tree_util.keystr, simple=True, separator="/")
    return {name(path): x for path, x in jax.tree_util.tree_leaves_with_path(params)}


def _kind(x: Any) -> str:
    return f"{x.dtype}{list(x.shape)}" if hasattr(x, "dtype") else "no array"


def _stripped(lines: Iterable[str]) -> list[str]:
    return [line.replace("\n", " ").strip() for line in texts(lines, "lines")]


def _number(part: long_lines.LinePart, first_line: int) -> int:
    """Return the number that determines samples; the first part has its line's number."""
    return (first_line + part.line + part.order * 0x9E3779B1) % 2**31


def joined_hypotheses(parts: Sequence[Sequence[Hypothesis]], num_best: int) -> list[Hypothesis]:
    """Join hypotheses of the parts of a line into the best hypotheses of the line, best first.

    Args:
      parts: the hypotheses of each part, best first.
    """
    joined = list(parts[0])
    for part in parts[1:]:
        longer = [_followed(first, second) for first in joined for second in part]
        joined = sorted(longer, key=lambda hypothesis: -hypothesis.score)[:num_best]
    return joined


def _followed(first: Hypothesis, second: Hypothesis) -> Hypothesis:
    return Hypothesis(
        f"{first.text} {second.text}".strip(),
        first.score + second.score,
        first.log_prob + second.log_prob,
        first.tokens + second.tokens,
    )


def is_blank(tokens: list[int]) -> bool:
    """Return whether an encoded line is nothing but the end of sentence."""
    return len(tokens) == 1


def diverged(number: int) -> DivergedError:
    """Make the error for a line whose probabilities are not finite."""
    return DivergedError(
        f"the model gives no finite probabilities for line {number}; its training has "
        "diverged: use an earlier step, or train again at a lower learning rate"
    )
