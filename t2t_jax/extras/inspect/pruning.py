"""Remove attention heads from a model, so that its parameter arrays get smaller."""

import dataclasses
from collections import defaultdict
from operator import itemgetter
from pathlib import Path

import numpy as np

from t2t_jax.config.model import PARTS, Part
from t2t_jax.errors import UserError
from t2t_jax.extras.inspect.heads import Head, all_heads
from t2t_jax.extras.interchange import portable, rewriting, run
from t2t_jax.modules.gates import HeadGates


def heads_to_prune(importance: HeadGates, share: float) -> list[Head]:
    """Choose the least important heads to remove, equally many from every layer of an attention.

    Args:
      share: the least fraction of all heads to remove, above 0 and below 1.
    """
    # Each round removes a head per layer of one attention, where their mean importance is lowest.
    min_count = share * len(all_heads(importance))
    scores = {name: np.asarray(getattr(importance, name)) for name in PARTS}
    heads_by_importance = {name: np.argsort(scores[name], axis=1) for name in PARTS}
    rounds = [
        (mean_importance, name, index)
        for name in PARTS
        for index, mean_importance in enumerate(np.sort(scores[name], axis=1).mean(0)[:-1])
    ]
    heads: list[Head] = []
    for _, name, index in sorted(rounds, key=itemgetter(0)):
        if len(heads) < min_count:
            layer_heads = heads_by_importance[name][:, index]
            heads += [Head(name, layer, int(head)) for layer, head in enumerate(layer_heads)]
    if len(heads) < min_count:
        raise UserError(
            f"at most {len(heads)} of {len(all_heads(importance))} heads can be removed, because "
            f"each layer keeps one; prune a smaller share than {share}"
        )
    return heads


def remove_heads(model: portable.PortableModel, heads: list[Head]) -> portable.PortableModel:
    """Return a smaller model that computes the same as `model` with some heads masked.

    `heads` has equally many heads of every layer of an attention.
    """
    model_config = model.config.model
    removed_heads: dict[tuple[Part, int], list[int]] = defaultdict(list)
    for name, layer, head in heads:
        removed_heads[name, layer].append(head)
    fields = {}
    for name in PARTS:
        if num_removed := len(removed_heads[name, 0]):
            fields[f"model.{name}_heads"] = model_config.attention_of(name).num_heads - num_removed
    config = model.config.replace(fields)

    def prune(name: Part, layer: int, array: rewriting.Heads) -> rewriting.Heads:
        return np.delete(array, removed_heads[name, layer], axis=0)

    arrays = rewriting.with_changed_heads(model.arrays, model_config, prune)
    return dataclasses.replace(model, config=config, arrays=arrays)


def prune_run(workdir: Path, out: Path, heads: list[Head], **options: int | str | None) -> None:
    """Remove attention heads from the model of a run, and write the result as a new run.

    Args:
      out: the new run directory, which must be empty or missing.
      options: the arguments `average` and `step` of `t2t_jax.load`.
    """
    model = portable.portable_model(workdir, **options)  # type: ignore[arg-type]
    names = [f"{name} {layer + 1}:{head + 1}" for name, layer, head in sorted(heads)]
    origin = {"format": "pruned", "path": str(workdir), "heads": names}
    run.write_run(remove_heads(model, heads), out, origin)
