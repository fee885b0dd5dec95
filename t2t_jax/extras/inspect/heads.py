"""The worth of each attention head of a model, and what the head attends to.

The worth has two measures from "Are Sixteen Heads Really Better than One?" (Michel et al. 2019):

- the change of a model's loss, and of its BLEU, when one head is masked (section 3.2);
- the importance of a head, I = E |dL / d gate|, the mean over sentences of the size of the loss's
  derivative by a gate on the head (section 4.1). L is the mean negative log-likelihood of a token
  of a sentence, in nats. One pass over the sentences gives the importance of all heads.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from itertools import islice
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Array, Float, Float32

from t2t_jax.batch import Batch, padded
from t2t_jax.config import EncoderDecoderConfig
from t2t_jax.config.model import PARTS, Part
from t2t_jax.data.corpus import open_corpus
from t2t_jax.decoding.attention_maps import weights_of, words_of
from t2t_jax.decoding.scheduler import length_bucket
from t2t_jax.decoding.translator import Translator
from t2t_jax.errors import UserError
from t2t_jax.extras.inspect.head_kinds import HeadCounts, count_heads, sides
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.ensemble import Ensemble
from t2t_jax.modules.gates import HeadGates, gated, open_gates
from t2t_jax.modules.interceptors import InterceptedJit
from t2t_jax.modules.parameters import Parameters
from t2t_jax.run.evaluation import prepare_evaluation
from t2t_jax.system.signals import safe_point
from t2t_jax.tasks.measures.bleu import corpus_scores
from t2t_jax.training.step import loss_sums

_ROWS = 16  # sentences in a batch
_AT_ONCE = 4  # sentences whose derivatives are computed together


class Head(NamedTuple):
    """A head of a network."""

    attention: Part
    """The attention that the head belongs to."""
    layer: int
    """The layer of the head, from 0."""
    head: int
    """The number of the head in its layer, from 0."""


@dataclass(frozen=True)
class HeadWorth:
    """The worth of a head, and what the head attends to."""

    attention: Part
    """The attention that the head belongs to."""
    layer: int
    """The layer of the head, from 0."""
    head: int
    """The number of the head in its layer, from 0."""
    loss_change: float
    """The change of a token's negative log-likelihood, in nats, when the head is masked."""
    bleu_change: float | None
    """The change of sacreBLEU when the head is masked; None where nothing was translated."""
    importance: float
    """The mean size of the loss's derivative by a gate on the head."""
    kind: str
    """The kind of the head by what it attends to; see `inspect.head_kinds`."""
    entropy: float
    """The mean entropy of the head's weights, in nats."""


@dataclass(frozen=True)
class CurvePoint:
    """The loss and BLEU of the model without its least important heads."""

    share: float
    """The share of all heads that are masked."""
    heads: int
    """The number of heads that are masked."""
    loss: float
    """The negative log-likelihood of a token, in nats."""
    bleu: float | None
    """sacreBLEU; None where nothing was translated."""


@dataclass(frozen=True)
class HeadReport:
    """The worth of all heads of a model."""

    split: str
    """The split that the heads were measured on."""
    num_sentences: int
    """The number of sentences of the split that were used, from the first on."""
    loss: float
    """The negative log-likelihood of a token, in nats, with all heads."""
    bleu: float | None
    """sacreBLEU of greedy search with all heads; None where nothing was translated."""
    heads: list[HeadWorth]
    """The worth of every head."""
    curve: list[CurvePoint]
    """The model with more and more of its heads masked, the least important ones first."""


class _Measures:
    """The measurements of a model on some sentences, with some of its heads masked."""

    def __init__(
        self, translator: Translator, split: str, num_sentences: int | None, *, bleu: bool
    ) -> None:
        """Read the sentences; refuse a model without heads of its own."""
        if isinstance(translator.model, Ensemble):
            raise UserError("an ensemble has no heads of its own; name one of its models")
        config, vocabulary = translator.config, translator.vocabulary
        if not isinstance(config.model, EncoderDecoderConfig):
            raise UserError(
                "heads are measured and pruned in an encoder and a decoder, but this run has "
                f"model.architecture={config.model.architecture!r}; use t2t-jax explore"
            )
        corpus = open_corpus(config.data)
        prepare_evaluation(config, corpus, vocabulary, split)
        pairs = zip(*corpus.lines(split), strict=True)
        kept = list(islice(((a, b) for a, b in pairs if a.strip() and b.strip()), num_sentences))
        self.translator = translator
        self.translates = bleu and corpus.facts.score[0] == "bleu"
        self.lines, self.references = [a for a, _ in kept], [b for _, b in kept]
        self.sources = vocabulary.encode(self.lines)
        self.targets = vocabulary.encode_targets(self.references)

    @cached_property
    def batches(self) -> list[Batch]:
        """Return the pairs in order, in few shapes, so that few programs are compiled."""
        found = []
        for first in range(0, len(self.sources), _ROWS):
            rows = (each[first : first + _ROWS] for each in (self.sources, self.targets))
            arrays = (padded(x, _ROWS, length_bucket(max(map(len, x)))) for x in rows)
            found.append(Batch.of(*arrays))
        return found

    def loss(self, gates: HeadGates) -> float:
        """Compute the negative log-likelihood of a token, in nats."""
        translator = self.translator
        sums = [_losses(translator.model, translator.params, gates, each) for each in self.batches]
        nll, tokens = np.sum(jax.device_get(sums), axis=0)
        return float(nll / tokens)

    def bleu(self, gates: HeadGates) -> float | None:
        """Compute the sacreBLEU of greedy search; return None where nothing is translated."""
        if not self.translates:
            return None
        whole = self.translator
        # The search of the whole model is reused, without a compilation.
        masked = Translator(whole.config, whole.vocabulary, gated(whole.params, gates))
        outputs = masked.translate(self.lines, beam_size=1)
        return corpus_scores(outputs, self.references, whole.config.data.target_language).bleu

    def importance(self) -> HeadGates:
        """Compute the mean size of the loss's derivative by each gate."""
        translator = self.translator
        gates = open_gates(translator.config.model)
        total: HeadGates = jax.tree.map(lambda x: np.zeros(x.shape), gates)
        for batch in self.batches:
            safe_point()
            sizes = _derivatives(translator.model, translator.params, gates, batch)
            total = jax.tree.map(np.add, total, jax.device_get(sizes))
        count = len(self.sources)
        return jax.tree.map(lambda x: x / count, total)

    def counts(self) -> dict[Part, HeadCounts]:
        """Count the shares and entropies of the heads of each attention."""
        found: dict[Part, HeadCounts] = {}
        vocabulary = self.translator.vocabulary
        for number, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            row = number % _ROWS
            if row == 0:
                safe_point()
                weights = weights_of(self.translator, self.batches[number // _ROWS])
            [of_source] = vocabulary.pieces([source])
            [of_target] = vocabulary.target_pieces([target])
            of_attentions = sides(
                (words_of(source, vocabulary, of_source=True), of_source),
                (words_of(target, vocabulary), of_target),
            )
            for name, (queries, keys) in of_attentions.items():
                of_row = weights[name][:, row, :, : len(queries.words), : len(keys.words)]
                counts = count_heads(of_row, queries, keys, name)
                found[name] = found[name] + counts if name in found else counts
        return found


def weigh_heads(
    translator: Translator,
    split: str = "dev",
    *,
    num_sentences: int | None = None,
    bleu: bool = True,
) -> HeadReport:
    """Measure the worth of every head of a model.

    Args:
      translator: the model.
      split: the split that is measured on.
      num_sentences: how many sentences, from the first on, blank ones not counted; None means all.
      bleu: whether sentences are translated, by greedy search, once for every head and every point
        of the curve. Parsers are measured by their loss alone.
    """
    measures = _Measures(translator, split, num_sentences, bleu=bleu)
    whole = open_gates(translator.config.model)
    loss, score = measures.loss(whole), measures.bleu(whole)
    importance, counts = measures.importance(), measures.counts()
    kinds = {name: counts[name].kinds() for name in PARTS}
    worths = []
    for place in all_heads(whole):
        safe_point()
        gates = without(whole, [place])
        masked = measures.bleu(gates)
        name, layer, head = place
        worths.append(
            HeadWorth(
                *place,
                loss_change=measures.loss(gates) - loss,
                bleu_change=None if masked is None or score is None else masked - score,
                importance=float(getattr(importance, name)[layer, head]),
                kind=kinds[name][layer][head],
                entropy=float(counts[name].mean_entropy[layer, head]),
            )
        )
    curve = [CurvePoint(0.0, 0, loss, score), *_curve(measures, whole, pruning_order(importance))]
    return HeadReport(split, len(measures.lines), loss, score, worths, curve)


def importance_of_heads(
    translator: Translator, split: str = "dev", *, num_sentences: int | None = None
) -> HeadGates:
    """Compute the importance of every head in one pass over sentences, as in `weigh_heads`."""
    return _Measures(translator, split, num_sentences, bleu=False).importance()


def pruning_order(importance: HeadGates) -> list[Head]:
    """Return the heads that can be pruned, the least important one first.

    Heads are compared by their importance over the Euclidean norm of those of their layer, as in
    the paper. The most important head of each layer of an attention stays, so that none is left
    without heads.
    """
    relative = {}
    for name, array in importance._asdict().items():
        sizes = np.asarray(array, np.float64)
        relative[name] = sizes / np.maximum(np.linalg.norm(sizes, axis=1, keepdims=True), 1e-30)
    heads = sorted(all_heads(importance), key=lambda head: relative[head[0]][head[1:]])
    left = Counter((name, layer) for name, layer, _ in heads)
    order = []
    for head in heads:
        if left[head[:2]] > 1:
            left[head[:2]] -= 1
            order.append(head)
    return order


def all_heads(gates: HeadGates) -> list[Head]:
    """Return every head that has a gate, attention by attention and layer by layer."""
    return [
        Head(name, layer, head)
        for name in PARTS
        for layer, head in np.ndindex(getattr(gates, name).shape)
    ]


def without(gates: HeadGates, heads: Sequence[Head]) -> HeadGates:
    """Return gates that also mask some heads."""
    arrays = {name: np.array(array) for name, array in gates._asdict().items()}
    for name, *place in heads:
        arrays[name][*place] = 0
    return HeadGates(**{name: jnp.asarray(array) for name, array in arrays.items()})


def _curve(measures: _Measures, whole: HeadGates, order: list[Head]) -> Iterator[CurvePoint]:
    """Yield the points of the curve: a tenth more of the heads is masked each time, if allowed."""
    number = len(all_heads(whole))
    for tenth in range(1, 10):
        count = round(tenth / 10 * number)
        if count <= len(order):
            safe_point()
            gates = without(whole, order[:count])
            yield CurvePoint(count / number, count, measures.loss(gates), measures.bleu(gates))


@partial(InterceptedJit, static_argnums=0)
def _losses(
    model: DecodingModel, params: Parameters, gates: HeadGates, batch: Batch
) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
    """Compute the negative log-likelihood of a batch's tokens, and their number."""
    sums = loss_sums(model.losses(gated(params, gates), batch, 0.0), batch)
    return sums.nll, sums.tokens


@partial(InterceptedJit, static_argnums=0)
def _derivatives(
    model: DecodingModel, params: Parameters, gates: HeadGates, batch: Batch
) -> HeadGates:
    """Sum, over sentences, the size of the derivative of a sentence's mean loss by each gate."""

    def mean_loss(gates: HeadGates, one: Batch) -> Float[Array, ""]:
        row = jax.tree.map(lambda x: x[None], one)
        nll, tokens = _losses(model, params, gates, row)
        return nll / jnp.maximum(tokens, 1)

    of_rows = jax.lax.map(partial(jax.grad(mean_loss), gates), batch, batch_size=_AT_ONCE)
    return jax.tree.map(lambda x: jnp.abs(x).sum(0), of_rows)
