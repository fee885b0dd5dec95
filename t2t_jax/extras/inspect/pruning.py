"""Removal of attention heads from a model: arrays get smaller, where gates only masked heads."""

import dataclasses
from collections import defaultdict
from operator import itemgetter
from pathlib import Path

import numpy as np

from t2t_jax.config.model import PARTS, Part
from t2t_jax.errors import UserError
from t2t_jax.extras.inspect.heads import Head, all_heads
from t2t_jax.extras.interchange import portable, rewriting, runs
from t2t_jax.modules.gates import HeadGates


def heads_to_prune(importance: HeadGates, share: float) -> list[Head]:
    """Return the heads to remove, so that the layers of a stack stay alike.

    Layers of one kind have arrays of one shape, so all of them lose equally many heads. In each
    round, one kind of attention ("encoder", "decoder" or "cross") loses the least important head of
    each layer: the kind in which the mean importance of these heads is the least. Rounds end when
    the share is reached, and one head of each layer stays.

    Args:
      share: the least share of all heads to remove, above 0 and below 1.
    """
    wanted = share * len(all_heads(importance))
    sizes = {name: np.asarray(getattr(importance, name)) for name in PARTS}
    orders = {name: np.argsort(sizes[name], axis=1) for name in PARTS}
    rounds = [
        (cost, name, number)
        for name in PARTS
        for number, cost in enumerate(np.sort(sizes[name], axis=1).mean(0)[:-1])
    ]
    pruned: list[Head] = []
    for _, name, number in sorted(rounds, key=itemgetter(0)):
        if len(pruned) < wanted:
            column = orders[name][:, number]
            pruned += [Head(name, layer, int(head)) for layer, head in enumerate(column)]
    if len(pruned) < wanted:
        raise UserError(
            f"no more than {len(pruned)} of {len(all_heads(importance))} heads can go, as one of "
            f"each layer stays; prune a smaller share than {share}"
        )
    return pruned


def without_heads(model: portable.PortableModel, heads: list[Head]) -> portable.PortableModel:
    """Return a model without some heads, equal to the whole one with their gates at 0.

    Args:
      heads: the heads to remove, equally many of each layer of an attention.
    """
    network = model.config.model
    gone: dict[tuple[Part, int], list[int]] = defaultdict(list)
    for name, layer, head in heads:
        gone[name, layer].append(head)
    left = {}
    for name in PARTS:
        stack = network.stacks[0 if name == "encoder" else 1]
        numbers = {len(gone[name, layer]) for layer in range(stack.num_layers)}
        if len(numbers) != 1:
            raise UserError(f"the layers of {name} attention would have different numbers of heads")
        if number := numbers.pop():
            left[f"model.{name}_heads"] = network.attention_of(name).num_heads - number
    config = model.config.replace(left)

    def kept(name: Part, layer: int, parts: rewriting.Heads) -> rewriting.Heads:
        return np.delete(parts, gone[name, layer], axis=0)

    arrays = rewriting.with_changed_heads(model.arrays, network, kept)
    return dataclasses.replace(model, config=config, arrays=arrays)


def prune_run(workdir: Path, out: Path, heads: list[Head], **which: int | str | None) -> None:
    """Write a run whose model has lost some heads.

    Args:
      out: the directory of the new run, which does not exist yet, or is empty.
      which: `average` and `step` of the checkpoints; see `t2t_jax.load`.
    """
    model = portable.portable_model(workdir, **which)  # type: ignore[arg-type]
    names = [f"{name} {layer + 1}:{head + 1}" for name, layer, head in sorted(heads)]
    origin = {"format": "pruned", "path": str(workdir), "heads": names}
    runs.write_run(without_heads(model, heads), out, origin)
