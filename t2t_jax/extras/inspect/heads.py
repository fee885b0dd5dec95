"""Measure how much a model depends on each attention head (Michel et al. 2019).

- Ablation (section 3.2): the change of loss and BLEU when one head is masked.
- Importance (section 4.1): I = E |dL / d gate|, the mean over sentences of the absolute derivative
  of the loss with respect to a gate on the head. L is in nats per token.
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
from t2t_jax.extras.inspect.head_kinds import HeadCounts, attention_sides, count_heads
from t2t_jax.modules.decoding_model import DecodingModel
from t2t_jax.modules.ensemble import Ensemble
from t2t_jax.modules.gates import HeadGates, apply_gates, open_gates
from t2t_jax.modules.interceptors import InterceptedJit
from t2t_jax.modules.parameters import Parameters
from t2t_jax.run.evaluation import prepare_evaluation
from t2t_jax.system.signals import safe_point
from t2t_jax.tasks.measures.bleu import corpus_scores
from t2t_jax.training.objective import loss_sums

_ROWS = 16  # sentences per batch
_GRADIENT_ROWS = 4  # sentences whose gradients are computed together, to bound the memory


class Head(NamedTuple):
    """The position of an attention head in a network."""

    attention: Part
    """The attention that the head belongs to."""
    layer: int
    """The layer of the head, from 0."""
    head: int
    """The number of the head in its layer, from 0."""


@dataclass(frozen=True)
class HeadWorth:
    """The importance and kind of one attention head."""

    attention: Part
    """The attention that the head belongs to."""
    layer: int
    """The layer of the head, from 0."""
    head: int
    """The number of the head in its layer, from 0."""
    loss_change: float
    """The change of the loss, in nats per token, when the head is masked."""
    bleu_change: float | None
    """The change of sacreBLEU when the head is masked; None if BLEU was not measured."""
    importance: float
    """The mean absolute derivative of the loss with respect to a gate on the head."""
    kind: str
    """The kind of the head by what it attends to; see `head_kinds`."""
    entropy: float
    """The mean entropy of the attention weights of the head, in nats."""


@dataclass(frozen=True)
class CurvePoint:
    """The loss and BLEU of a model with its least important heads masked."""

    share: float
    """The fraction of all heads that are masked."""
    heads: int
    """The number of heads that are masked."""
    loss: float
    """The negative log-likelihood, in nats per token."""
    bleu: float | None
    """sacreBLEU; None if BLEU was not measured."""


@dataclass(frozen=True)
class HeadReport:
    """The importance of all heads of a model, and its quality."""

    split: str
    """The split of the corpus that the heads were measured on."""
    num_sentences: int
    """The number of sentences of the split that were used, from the first on."""
    loss: float
    """The negative log-likelihood with all heads, in nats per token."""
    bleu: float | None
    """sacreBLEU of greedy search with all heads; None if BLEU was not measured."""
    heads: list[HeadWorth]
    """The measurements of every head."""
    curve: list[CurvePoint]
    """Loss and BLEU as more and more heads are masked, the least important heads first."""


class _Measures:
    """Measure a model with masked heads on the sentences of a split."""

    def __init__(
        self, translator: Translator, split: str, num_sentences: int | None, *, loss_only: bool
    ) -> None:
        if isinstance(translator.model, Ensemble):
            raise UserError("an ensemble has no attention heads; name one of its models")
        config, vocabulary = translator.config, translator.vocabulary
        if not isinstance(config.model, EncoderDecoderConfig):
            raise UserError(
                "heads are measured and pruned only in encoder-decoder models, but this run has "
                f"model.architecture={config.model.architecture!r}; use t2t-jax explore"
            )
        corpus = open_corpus(config.data)
        prepare_evaluation(config, corpus, vocabulary, split)
        pairs = zip(*corpus.lines(split), strict=True)
        sample = list(islice(((a, b) for a, b in pairs if a.strip() and b.strip()), num_sentences))
        self.translator = translator
        self.has_bleu = not loss_only and corpus.facts.score[0] == "bleu"
        self.lines, self.references = [a for a, _ in sample], [b for _, b in sample]
        self.sources = vocabulary.encode(self.lines)
        self.targets = vocabulary.encode_targets(self.references)

    @cached_property
    def batches(self) -> list[Batch]:
        """Return batches of the sentence pairs in order, with few shapes to limit compilation."""
        batches = []
        for start in range(0, len(self.sources), _ROWS):
            rows = (side[start : start + _ROWS] for side in (self.sources, self.targets))
            arrays = (padded(x, _ROWS, length_bucket(max(map(len, x)))) for x in rows)
            batches.append(Batch.of(*arrays))
        return batches

    def loss(self, gates: HeadGates) -> float:
        """Compute the negative log-likelihood with these gates on heads, in nats per token."""
        translator = self.translator
        batch_sums = [_losses(translator.model, translator.params, gates, x) for x in self.batches]
        total_nll, num_tokens = np.sum(jax.device_get(batch_sums), axis=0)
        return float(total_nll / num_tokens)

    def bleu(self, gates: HeadGates) -> float | None:
        """Compute the sacreBLEU of greedy search with these gates on heads; None if BLEU is off."""
        if not self.has_bleu:
            return None
        model = self.translator
        # Gates are parameters, so the compiled search of the full model is reused.
        masked_model = Translator(model.config, model.vocabulary, apply_gates(model.params, gates))
        outputs = masked_model.translate(self.lines, beam_size=1)
        return corpus_scores(outputs, self.references, model.config.data.target_language).bleu

    def importance(self) -> HeadGates:
        """Compute the mean absolute derivative of the loss with respect to each head's gate."""
        translator = self.translator
        gates = open_gates(translator.config.model)
        sums: HeadGates = jax.tree.map(lambda x: np.zeros(x.shape), gates)
        for batch in self.batches:
            safe_point()
            gradients = _abs_gradients(translator.model, translator.params, gates, batch)
            sums = jax.tree.map(np.add, sums, jax.device_get(gradients))
        num_sentences = len(self.sources)
        return jax.tree.map(lambda x: x / num_sentences, sums)

    def counts(self) -> dict[Part, HeadCounts]:
        """Sum each head's attention weights by kind of key, and its entropies, over sentences."""
        totals: dict[Part, HeadCounts] = {}
        vocabulary = self.translator.vocabulary
        for index, (source, target) in enumerate(zip(self.sources, self.targets, strict=True)):
            batch_row = index % _ROWS
            if batch_row == 0:
                safe_point()
                weights = weights_of(self.translator, self.batches[index // _ROWS])
            [source_pieces] = vocabulary.pieces([source])
            [target_pieces] = vocabulary.target_pieces([target])
            sides = attention_sides(
                (words_of(source, vocabulary, of_source=True), source_pieces),
                (words_of(target, vocabulary), target_pieces),
            )
            for name, (queries, keys) in sides.items():
                # [layers, heads, queries, keys] of the sentence, without padding
                attention = weights[name][:, batch_row, :, : len(queries.words), : len(keys.words)]
                counts = count_heads(attention, queries, keys, name)
                totals[name] = totals[name] + counts if name in totals else counts
        return totals


def measure_heads(
    translator: Translator,
    split: str = "dev",
    *,
    num_sentences: int | None = None,
    loss_only: bool = False,
) -> HeadReport:
    """Measure the effect and importance of every attention head of a model.

    Args:
      num_sentences: the number of sentences from the start of the split, without blank lines. None
        means all.
      loss_only: skip BLEU, which takes one greedy search of the split per head and curve point.
        Parsers have no BLEU.
    """
    measures = _Measures(translator, split, num_sentences, loss_only=loss_only)
    gates = open_gates(translator.config.model)
    loss, bleu = measures.loss(gates), measures.bleu(gates)
    importance, counts = measures.importance(), measures.counts()
    kinds = {name: counts[name].kinds() for name in PARTS}
    worths = []
    for head in all_heads(gates):
        safe_point()
        masked_gates = mask_heads(gates, [head])
        masked_bleu = measures.bleu(masked_gates)
        name, layer, index = head
        worths.append(
            HeadWorth(
                *head,
                loss_change=measures.loss(masked_gates) - loss,
                bleu_change=None if masked_bleu is None or bleu is None else masked_bleu - bleu,
                importance=float(getattr(importance, name)[layer, index]),
                kind=kinds[name][layer][index],
                entropy=float(counts[name].mean_entropy[layer, index]),
            )
        )
    curve = [CurvePoint(0.0, 0, loss, bleu), *_curve(measures, gates, pruning_order(importance))]
    return HeadReport(split, len(measures.lines), loss, bleu, worths, curve)


def importance_of_heads(
    translator: Translator, split: str = "dev", *, num_sentences: int | None = None
) -> HeadGates:
    """Compute the importance of every head in one pass over the sentences of a split."""
    return _Measures(translator, split, num_sentences, loss_only=True).importance()


def pruning_order(importance: HeadGates) -> list[Head]:
    """Return the heads that can be pruned, the least important head first.

    Importance is divided by the L2 norm of the importance in the layer (Michel et al. 2019). Each
    layer of an attention keeps its most important head.
    """
    ratios = {}
    for name, array in importance._asdict().items():
        scores = np.asarray(array, np.float64)
        ratios[name] = scores / np.maximum(np.linalg.norm(scores, axis=1, keepdims=True), 1e-30)
    heads = sorted(all_heads(importance), key=lambda head: ratios[head[0]][head[1:]])
    num_left = Counter((name, layer) for name, layer, _ in heads)
    prunable_heads = []
    for head in heads:
        if num_left[head[:2]] > 1:
            num_left[head[:2]] -= 1
            prunable_heads.append(head)
    return prunable_heads


def all_heads(gates: HeadGates) -> list[Head]:
    """Return all heads with a gate, ordered by attention, layer and head."""
    return [
        Head(name, layer, head)
        for name in PARTS
        for layer, head in np.ndindex(getattr(gates, name).shape)
    ]


def mask_heads(gates: HeadGates, heads: Sequence[Head]) -> HeadGates:
    """Return a copy of gates with the gates of some heads set to 0."""
    arrays = {name: np.array(array) for name, array in gates._asdict().items()}
    for name, layer, head in heads:
        arrays[name][layer, head] = 0
    return HeadGates(**{name: jnp.asarray(array) for name, array in arrays.items()})


def _curve(measures: _Measures, gates: HeadGates, heads: list[Head]) -> Iterator[CurvePoint]:
    """Mask `heads` in order, and yield the loss and BLEU at each 10% of all heads, up to 90%."""
    num_heads = len(all_heads(gates))
    for tenth in range(1, 10):
        num_masked = round(tenth / 10 * num_heads)
        if num_masked <= len(heads):
            safe_point()
            masked_gates = mask_heads(gates, heads[:num_masked])
            loss, bleu = measures.loss(masked_gates), measures.bleu(masked_gates)
            yield CurvePoint(num_masked / num_heads, num_masked, loss, bleu)


@partial(InterceptedJit, static_argnums=0)
def _losses(
    model: DecodingModel, params: Parameters, gates: HeadGates, batch: Batch
) -> tuple[Float32[Array, ""], Float32[Array, ""]]:
    sums = loss_sums(model.losses(apply_gates(params, gates), batch, 0.0), batch)
    return sums.nll, sums.tokens


@partial(InterceptedJit, static_argnums=0)
def _abs_gradients(
    model: DecodingModel, params: Parameters, gates: HeadGates, batch: Batch
) -> HeadGates:
    """Sum |d loss / d gate| over the sentences of a batch."""

    def mean_loss(gates: HeadGates, sentence: Batch) -> Float[Array, ""]:
        row = jax.tree.map(lambda x: x[None], sentence)
        nll, tokens = _losses(model, params, gates, row)
        return nll / jnp.maximum(tokens, 1)

    gradients = jax.lax.map(partial(jax.grad(mean_loss), gates), batch, batch_size=_GRADIENT_ROWS)
    return jax.tree.map(lambda x: jnp.abs(x).sum(0), gradients)
