"""The work that benchmarks time: training steps and searches, on random tokens without padding.

Import it before JAX: it sets the process up as `t2t-jax` does.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import measuring
import numpy as np

from t2t_jax.system.program import prepare_process

prepare_process()

import jax  # noqa: E402
from jax.sharding import Mesh  # noqa: E402

from t2t_jax.batch import EOS_ID, Batch, Sequence  # noqa: E402
from t2t_jax.config import Config  # noqa: E402
from t2t_jax.config.cost import model_flops_per_step  # noqa: E402
from t2t_jax.decoding.programs import (  # noqa: E402
    Arrivals,
    Search,
    SearchInputs,
    Sizes,
    begin_work,
    proceed,
)
from t2t_jax.decoding.scheduler import strategy_of  # noqa: E402
from t2t_jax.kernels.reference import Kernels  # noqa: E402
from t2t_jax.modules.models import make_decoding_model, make_model  # noqa: E402
from t2t_jax.parallel.mesh import batch_layout, make_mesh, put_rows  # noqa: E402
from t2t_jax.training.state import create_state  # noqa: E402
from t2t_jax.training.step import compile_train_step  # noqa: E402

_FIRST_WORD = 8  # below are the special ids


def random_tokens(rows: int, length: int, vocab_size: int, seed: int = 0) -> np.ndarray:
    """Return sentences of exactly `length` random tokens, the end of sentence included."""
    tokens = np.random.default_rng(seed).integers(_FIRST_WORD, vocab_size, (rows, length))
    tokens[:, -1] = EOS_ID
    return tokens.astype(np.int32)


class CompiledStep(NamedTuple):
    """A compiled training step on a full batch."""

    program: Any
    """The program that the step was compiled to."""
    take: Callable[..., float]
    """A function that takes a step, or as many as its argument says without waiting in between,
    waits for the last and returns its loss."""
    figures: dict[str, Any]
    """The batch, the operations of the model, and the seconds and bytes of compiling."""


def training(config: Config, rows: int, length: int) -> Callable[..., float]:
    """Return the function of a compiled training step; see `CompiledStep.take`."""
    take = training_steps(config, [(rows, length)])[0].take
    take()
    return take


def training_steps(
    config: Config,
    shapes: Iterable[tuple[int, int]],
    kernels: Kernels | None = None,
    options: Mapping[str, bool | int] | None = None,
) -> list[CompiledStep]:
    """Return compiled training steps on full batches, which share their state.

    Args:
      config: the config, whose dtype is settled.
      shapes: the rows of each batch, and the tokens of each side of a row.
      kernels: the functions of attention and matmuls; None means those for the devices.
      options: options of the compiler that take the place of the step's own.
    """
    mesh = make_mesh(config.parallel)
    model = make_model(config, config.data.vocab_size, mesh)
    if kernels is not None:
        model = model.clone(kernels=kernels)
    state = create_state(config, model, mesh)
    step = compile_train_step(config, model, mesh)

    def take(program: Any, batch: Batch, number: int = 1) -> float:
        nonlocal state
        for _ in range(number):
            state, metrics = program(state, batch)
        return float(metrics.losses.smoothed / metrics.losses.tokens)

    steps = []
    for rows, length in shapes:
        batch = full_batch(config, mesh, rows, length)
        program, cost = measuring.compiled(step, state, batch, options=options)
        steps.append(
            CompiledStep(program, partial(take, program, batch), _of(config, rows, length) | cost)
        )
    return steps


def _of(config: Config, rows: int, length: int) -> dict[str, Any]:
    tokens = rows * length
    return {
        "rows": rows,
        "length": length,
        "target_tokens": tokens,
        "tokens": 2 * tokens,
        "model_flops": model_flops_per_step(
            config.model,
            config.data.vocab_size,
            tokens,
            tokens,
            source_length=length,
            target_length=length,
        ),
    }


def full_batch(config: Config, mesh: Mesh, rows: int, length: int) -> Batch:
    """Return a batch on the devices in which every position of both sides holds a token."""
    positions = np.tile(np.arange(length, dtype=np.int32), (rows, 1))

    def side(seed: int) -> Sequence:
        tokens = random_tokens(rows, length, config.data.vocab_size, seed)
        return Sequence(tokens, np.ones_like(tokens), positions)

    layout = batch_layout(mesh, rows, length, config.parallel.tokens_per_device)
    return layout.put(Batch(side(0), side(1)))


def random_parameters(config: Config) -> Any:
    """Return parameters of an untrained model that never ends a sentence.

    The end of sentence has the logit 0, which is never the largest of thousands.
    """
    mesh = make_mesh(config.parallel)
    params = create_state(config, make_model(config, config.data.vocab_size, mesh), mesh).params
    embedding = params["embedding"]["embedding"]
    return params | {"embedding": {"embedding": embedding.at[EOS_ID].set(0)}}


def decoding(
    config: Config, params: Any, batch_size: int, source_length: int, target_length: int
) -> Callable[[], np.ndarray]:
    """Return a compiled search that ends at `target_length` and returns the best hypotheses."""
    fixed, fresh = search_arguments(config, params, batch_size, source_length, target_length)

    def translate() -> np.ndarray:
        _, progress = proceed(*fixed, *fresh())
        return jax.device_get(progress.best.tokens[:, 0])

    translate()
    return translate


def search_arguments(
    config: Config,
    params: Any,
    batch_size: int,
    source_length: int,
    target_length: int,
    kernels: Kernels | None = None,
) -> tuple[tuple[Any, ...], Callable[[], tuple[Any, ...]]]:
    """Return the static arguments of `proceed`, and a function that makes random sentences' arrays.

    The function makes new arrays for each search, because a search overwrites some of them.

    Args:
      config: the config, whose dtype is settled.
      params: the parameters.
      batch_size: the number of sentences.
      source_length: the tokens of each sentence.
      target_length: the tokens of each output.
      kernels: the functions that the network computes with; None means those for the devices.
    """
    vocab_size, mesh = config.data.vocab_size, make_mesh(config.parallel)
    model: Any = make_decoding_model(config.model, vocab_size, mesh)
    if kernels is not None:
        model = replace(model, network=model.network.clone(kernels=kernels))
    search = Search(model, strategy_of(config.decoding), mesh, 1)
    sizes = Sizes(batch_size, batch_size, source_length, target_length, target_length)
    prepare = partial(model.prepare, quantize=config.decoding.quantize)
    params = jax.jit(prepare)(params)
    numbers = np.arange(batch_size, dtype=np.int32)
    limits = np.full(batch_size, target_length, np.int32)

    tokens = random_tokens(batch_size, source_length, vocab_size)

    def fresh() -> tuple[Any, ...]:
        inputs = put_rows(tokens, mesh)
        search_inputs = SearchInputs(params, np.uint32(0))
        work = begin_work(search, sizes, search_inputs)
        return search_inputs, work, Arrivals(numbers, inputs, limits, numbers), 0

    return (search,), fresh
