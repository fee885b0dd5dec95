"""Translate lines of text with a trained model."""

import copy
import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array

from t2t_jax.config import Config, DecodingConfig, ModelConfig, sections
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.decoding import forbidden, long_lines
from t2t_jax.decoding.arguments import check_num_best, texts, whole_number
from t2t_jax.decoding.programs import Search, SearchInputs, check_search_memory
from t2t_jax.decoding.row_group import Sentence
from t2t_jax.decoding.scheduler import decode, plan, strategy_of
from t2t_jax.decoding.search.hypotheses import SearchResult
from t2t_jax.errors import DivergedError, UserError
from t2t_jax.modules.decoding_model import DecodingModel, TokenSources
from t2t_jax.modules.ensemble import Ensemble, join_parameters
from t2t_jax.modules.models import make_model, make_scoring_model
from t2t_jax.modules.network import Network
from t2t_jax.modules.parameters import Parameters, arrays_by_path, check_alike
from t2t_jax.parallel import devices, mesh
from t2t_jax.saved_model import save
from t2t_jax.system.html_table import html_table


class Hypothesis(NamedTuple):
    """One translation of a line."""

    text: str
    """The translation, without a line break."""
    score: float
    """In beam search, `log_prob` divided by the length penalty, otherwise `log_prob`. For a split
    line, the sum over its parts."""
    log_prob: float
    """Log-probability of the translation under the model, in nats."""
    tokens: tuple[int, ...]
    """Token ids, including an end-of-sentence token for each part of the line that has ended."""


_EMPTY = Hypothesis("", 0.0, 0.0, ())


class Translator:
    """A model, or an ensemble of models, with its vocabulary and parameters.

    Attributes are read-only, because compiled programs and prepared parameters depend on them.

    Attributes:
      config: the config of the run, or of an ensemble's first model.
      vocabulary: the shared subword vocabulary.
      model: a `DecodingModel`, or a `ScoringModel` for an encoder-only network.
      mesh: the devices of `params`. If they belong to several processes, all processes must
        translate the same lines at the same time.
      longest_sentence: the most tokens that every model has positions for.
      steps: training steps of the averaged checkpoints or moving averages of all models, if known.
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
        """Create a translator, and put its parameters on a device.

        Args:
          others: more models of an ensemble, which averages token distributions.
        """
        self.config = config
        self.vocabulary = vocabulary
        params = join_parameters([params, *(extra for _, extra in others)]) if others else params
        self._params: Parameters = jax.tree.map(_jax_array, params)
        self._arrays = arrays_by_path(self._params)
        self._size = sum(array.size for array in self._arrays.values())
        self._prepared: dict[sections.Quantize, Parameters] = {}
        self.mesh = mesh.mesh_of(self.params)
        configs = config.model, *(model_config for model_config, _ in others)
        if others and not all(model_config.decodes for model_config in configs):
            raise UserError("an ensemble needs models that write text; use one encoder at a time")
        models = [make_scoring_model(c, len(vocabulary), self.mesh) for c in configs]
        self.model: Any = Ensemble(tuple(cast(Any, models))) if others else models[0]
        self.longest_sentence = self.model.longest_sentence
        self.steps = tuple(steps)
        self.ema_decays = tuple(ema_decays)
        self._process = os.getpid()
        self._score: Callable[[], str] = str  # a function that returns an empty string

    def __repr__(self) -> str:
        """Describe the model's size, its steps and its score on dev."""
        summary = f"{self._size:,} parameters, {len(self.vocabulary):,} subwords"
        steps = "".join(f", step {step:,}" for step in self.steps)
        return f"<Translator: {summary}{steps}{self._score()}>"

    def _repr_html_(self) -> str:
        """Return a table of the model's size, languages, steps and score, for notebooks."""
        data, models = self.config.data, getattr(self.model, "members", [self.model])
        languages = f"{data.source_language} → {data.target_language}"
        rows = {
            "parameters": f"{self._size:,}",
            "layers": "; ".join(_layers(model.network.config) for model in models),
            "vocabulary": f"{len(self.vocabulary):,} subwords",
            "languages": languages if data.facts.writes_text else "",
            "step": ", ".join(f"{step:,}" for step in self.steps),
            "score": self._score().removeprefix(", "),
        }
        return html_table((name, text) for name, text in rows.items() if text)

    def __setattr__(self, name: str, value: object) -> None:
        """Set a new attribute; refuse to replace an attribute."""
        if name == "params" or name in vars(self):
            advice = "use with_params for other parameters, and arguments of calls for settings"
            raise AttributeError(f"{name} of a translator is read-only; {advice}")
        super().__setattr__(name, value)

    @property
    def params(self) -> Parameters:
        """Return the parameters in the form of training, on the devices.

        Change a copy, `jax.tree.map(lambda x: x, params)`, and pass it to `with_params`.

        Raises:
          UserError: the dictionaries were changed in place.
        """
        arrays, expected = arrays_by_path(self._params), self._arrays
        for path in expected | arrays:
            if arrays.get(path) is not expected.get(path):
                raise UserError(
                    f"translator.params was changed in place at {path}; load the model again, "
                    "change a copy of the dictionaries, and use translator.with_params(copy)"
                )
        return self._params

    def with_params(self, params: Parameters) -> "Translator":
        """Return a translator with other parameters, such as after fine-tuning.

        `steps` and `ema_decays` of the new translator are empty.

        Args:
          params: arrays with the paths, shapes and dtypes of `self.params`; copied if from NumPy.

        Raises:
          UserError: a parameter is missing, unknown, or has another shape or dtype.
        """
        check_alike(params, self._params, "the model", "translator.params")
        new, old = arrays_by_path(params), self._arrays
        leaves = [_put(_jax_array(new[path]), array.sharding) for path, array in old.items()]
        params = jax.tree.unflatten(jax.tree.structure(self._params), leaves)
        arrays = arrays_by_path(params)
        attributes = {"_params": params, "_arrays": arrays, "_prepared": {}, "_score": str}
        return self.replaced(**attributes, steps=(), ema_decays=())

    @property
    def module(self) -> Network:
        """Return the network as a Flax module for training, on the devices of `params`.

        Its `apply({"params": translator.params}, batch)` returns the logits of a `Batch`, and
        `method="losses"` the loss and negative log-likelihood of each target token.

        Raises:
          UserError: the translator is an ensemble.
        """
        if isinstance(self.model, Ensemble):
            raise UserError(
                f"an ensemble of {len(self.model.members)} models is not one module with one "
                "config; load one model, and train or save it"
            )
        return make_model(self.config, len(self.vocabulary), self.mesh)

    def save(self, directory: str | os.PathLike[str]) -> None:
        """Write the model as a run directory; see `t2t_jax.save`.

        Raises:
          UserError: the translator is an ensemble, or the directory is not empty or cannot be
            written.
        """
        _ = self.module  # refuses an ensemble
        decay = next(iter(self.ema_decays), None)
        config = self.config.replace({"training.ema_decay": decay})
        save(config, self.vocabulary, self.params, directory, steps=self.steps)

    def replaced(self, **attributes: object) -> "Translator":
        """Return a copy with replaced attributes, which must fit the remaining attributes."""
        translator = copy.copy(self)
        vars(translator).update(attributes)
        return translator

    def check_process(self) -> None:
        """Check that this process created the translator: JAX hangs in a forked process."""
        if os.getpid() != self._process:
            raise UserError(
                "this translator was made before the process was forked, and JAX's threads do not "
                'outlive a fork; start workers with multiprocessing\'s "spawn", and have each '
                "load the model itself"
            )

    def check_translates(self) -> None:
        """Raise a `UserError` if the model cannot translate text, or not in this process."""
        self.check_process()
        data = self.config.data
        if not data.facts.writes_text:
            raise UserError(
                f"the model was trained with data.task={data.task}, not to translate; use: t2t-jax "
                f"{data.facts.commands[0]}"
            )
        if not isinstance(self.model.sources, TokenSources):
            raise UserError(
                f"the model was trained with data.task={data.task}, whose sources are not text; "
                "evaluate it on a split of its corpus"
            )

    def prepared(self, quantize: sections.Quantize) -> Parameters:
        """Return the parameters in the form for decoding, from `DecodingModel.prepare`."""
        params = self.params  # the property also checks that the dictionaries are unchanged
        if quantize not in self._prepared:
            self._prepared[quantize] = _prepare(self.model, params, quantize)
        return self._prepared[quantize]

    def between(self, source: str | None, target: str | None) -> "Translator":
        """Return a translator for another language pair, which shares the parameters.

        Only multilingual models, which mark languages with tags, have several pairs.

        Args:
          source: the source language; None keeps it.
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
        """Return the best translation of each line; see `nbest` for the arguments."""
        best = self.nbest(
            lines, 1, prefixes=prefixes, seed=seed, first_line=first_line, **overrides
        )
        return [hypotheses[0].text for hypotheses in best]

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
        """Return the best translations of each line, which do not depend on other lines.

        Args:
          lines: sentences; a line break counts as a space. A blank line has one empty translation
            with probability 1. The config field `decoding.long_lines` decides about lines with more
            than `max_source_length` subwords.
          num_best: translations per line, at most the beam size. They differ in tokens, but two may
            have the same text.
          prefixes: for each line, the text with which its translation must begin, or "". The
            translation may continue the prefix's last word, and `log_prob` includes the prefix. In
            a split line, only the first part has the prefix.
          seed: seed of sampling (`temperature` above 0), below 2**32.
          first_line: number of the first line. Samples depend on line numbers.
          overrides: new values of fields of `DecodingConfig`.

        Returns:
          For each line, 1 to `num_best` hypotheses, best first.

        Raises:
          TypeError: an argument is of the wrong type.
          UserError: an argument, an override or a line is invalid, the search needs too much
            memory, or the model has diverged.
        """
        self.check_translates()
        seed = whole_number(seed, "seed", 0, 2**32 - 1)
        decoding = self.configured(**overrides).decoding
        check_num_best(num_best, decoding)
        lines = texts(lines, "lines", first_line)
        parts = self.parts(lines, decoding, first_line, prefixes)
        hypotheses: list[list[list[Hypothesis]]] = [[] for _ in lines]  # of each part of each line
        for part in parts:
            hypotheses[part.line].append([_EMPTY])
        parts = [part for part in parts if not is_blank(part.tokens)]
        sentences = []
        for part in parts:
            sentence = Sentence(part.tokens, 0, _sample_number(part, first_line), part.prefix)
            sentences.append(sentence._replace(limit=sentence.length + decoding.max_extra_length))
        with devices.within_memory(decoding=True):
            for index, best in self.search(sentences, decoding, num_best, seed):
                part = parts[index]
                hypotheses[part.line][part.order] = self.read(best, first_line + part.line)
        return [_joined(line_parts, num_best) for line_parts in hypotheses]

    def check_lines(self, lines: Iterable[str], *, first_line: int = 1, **overrides: Any) -> None:
        """Check that `nbest` would accept the lines, without translating them.

        Raises:
          TypeError: an argument is of the wrong type.
          UserError: the model does not translate, or an override or a line is invalid.
        """
        self.check_translates()
        decoding = self.configured(**overrides).decoding
        self.parts(texts(lines, "lines", first_line), decoding, first_line)

    def encode(self, lines: Iterable[str]) -> list[list[int]]:
        """Encode sources as token ids with an end-of-sentence token; line breaks become spaces."""
        return self.vocabulary.encode(_stripped(lines))

    def encode_targets(self, lines: Iterable[str]) -> list[list[int]]:
        """Encode targets as token ids with an end-of-sentence token; line breaks become spaces."""
        return self.vocabulary.encode_targets(_stripped(lines))

    def configured(self, decoding: DecodingConfig | None = None, **overrides: object) -> Config:
        """Return the config with other search settings.

        Args:
          decoding: the settings; None means `config.decoding`.
          overrides: new values of fields of `DecodingConfig`.

        Raises:
          TypeError: `decoding` is not a `DecodingConfig`.
          UserError: a field is invalid.
        """
        if decoding is None:
            config = self.config
        elif isinstance(decoding, DecodingConfig):
            config = dataclasses.replace(self.config, decoding=decoding)
        else:
            type_name = type(decoding).__name__
            raise TypeError(f"decoding is of type {type_name}; give a DecodingConfig")
        return config.replace({f"decoding.{name}": value for name, value in overrides.items()})

    def parts(
        self,
        lines: list[str],
        decoding: DecodingConfig,
        first_line: int = 1,
        prefixes: Iterable[str] | None = None,
    ) -> list[long_lines.LinePart]:
        """Encode lines and split the lines that are too long.

        Raises:
          UserError: a line is too long and `decoding.long_lines` does not allow splitting, or the
            numbers of lines and prefixes differ.
        """
        prefix_ids: Sequence[list[int]] = [[]] * len(lines)
        if prefixes is not None:
            prefixes = texts(prefixes, "prefixes", first_line)
            if len(prefixes) != len(lines):
                raise UserError(
                    f"{len(lines):,} lines have {len(prefixes):,} prefixes; give one for each "
                    'line, and "" for none'
                )
            # A prefix has no end-of-sentence token.
            prefix_ids = [tokens[:-1] for tokens in self.encode_targets(prefixes)]
        longest, sources = self.longest_sentence, self.encode(lines)
        return long_lines.parts(sources, prefix_ids, decoding, self.vocabulary, longest, first_line)

    def search(
        self, sentences: Sequence[Sentence], decoding: DecodingConfig, num_best: int, seed: int
    ) -> Iterator[tuple[int, SearchResult]]:
        """Find outputs of sentences by beam search or sampling.

        Args:
          sentences: inputs. A limit (of output tokens) is at most the input length plus
            `max_extra_length`. The default prefix of outputs is `target_begin`.

        Yields:
          The index of each sentence, in any order, and its hypotheses.

        Raises:
          UserError: the search needs too much memory.
        """
        constraints = forbidden.constraints_of(decoding, self.vocabulary)
        inputs = SearchInputs(self.prepared(decoding.quantize), np.uint32(seed), constraints)
        search = Search(self.model, strategy_of(decoding, num_best), self.mesh, num_best)
        lengths = sorted((sentence.length for sentence in sentences), reverse=True)
        for sizes in plan(lengths, decoding, self.mesh)[:1]:  # the longest sentences need the most
            check_search_memory(search, len(self.vocabulary), decoding, sizes)
        prefix = self.vocabulary.target_begin
        sentences = [s if s.prefix else s._replace(prefix=prefix) for s in sentences]
        yield from decode(search, inputs, decoding, sentences)

    def read(self, best: SearchResult, line_number: int = 1) -> list[Hypothesis]:
        """Decode the text of a sentence's hypotheses, without empty slots.

        Args:
          best: the search result of one sentence.
          line_number: line number, for the error.

        Raises:
          UserError: there are no hypotheses, because the model has diverged.
        """
        slots = zip(*(array.tolist() for array in best), strict=True)
        hypotheses = [
            (tuple(tokens[:length]), score, log_prob)
            for tokens, score, log_prob, length in slots
            if length and math.isfinite(log_prob)
        ]
        if not hypotheses:
            raise diverged(line_number)
        texts = self.vocabulary.decode([tokens for tokens, _, _ in hypotheses])
        return [
            # A byte-level vocabulary can generate a line break.
            Hypothesis(text.replace("\n", " "), score, log_prob, tokens)
            for text, (tokens, score, log_prob) in zip(texts, hypotheses, strict=True)
        ]


def _layers(model: ModelConfig) -> str:
    sides = ("decoder" if stack.reads_target else "encoder" for stack in model.stacks)
    depths = (f"{stack.num_layers} {side}" for stack, side in zip(model.stacks, sides, strict=True))
    return f"{' + '.join(depths)}, d_model {model.d_model}, {model.num_heads} heads"


@partial(jax.jit, static_argnames=("model", "quantize"))
def _prepare(model: DecodingModel, params: Parameters, quantize: sections.Quantize) -> Parameters:
    return model.prepare(params, quantize)


def _jax_array(x: jax.typing.ArrayLike) -> Array:
    # jnp.asarray could share memory with a NumPy array, which the caller may change later.
    return x if isinstance(x, jax.Array) else jnp.array(x)


def _put(x: Array, sharding: jax.sharding.Sharding) -> Array:
    # device_put commits an array to its device, even if it is already there.
    return x if x.sharding == sharding else jax.device_put(x, sharding)


def _stripped(lines: Iterable[str]) -> list[str]:
    return [line.replace("\n", " ").strip() for line in texts(lines, "lines")]


def _sample_number(part: long_lines.LinePart, first_line: int) -> int:
    """Return the number that seeds sampling for a part of a line; the first has the line number."""
    # The odd multiplier spreads the numbers of later parts, so that few equal a line number.
    return (first_line + part.line + part.order * 0x9E3779B1) % 2**31


def _joined(parts: Sequence[Sequence[Hypothesis]], num_best: int) -> list[Hypothesis]:
    """Combine the hypotheses of a line's parts into the best hypotheses of the line."""
    best = list(parts[0])
    for part in parts[1:]:
        candidates = [_concatenated(first, second) for first in best for second in part]
        best = sorted(candidates, key=lambda hypothesis: -hypothesis.score)[:num_best]
    return best


def _concatenated(first: Hypothesis, second: Hypothesis) -> Hypothesis:
    return Hypothesis(
        f"{first.text} {second.text}".strip(),
        first.score + second.score,
        first.log_prob + second.log_prob,
        first.tokens + second.tokens,
    )


def is_blank(tokens: list[int]) -> bool:
    """Return whether an encoded line has only the end-of-sentence token."""
    return len(tokens) == 1


def diverged(line_number: int) -> DivergedError:
    """Create the error for a line whose probabilities are not finite."""
    return DivergedError(
        f"the model gives no finite probabilities for line {line_number}; its training has "
        "diverged: use an earlier step, or train again at a lower learning rate"
    )
