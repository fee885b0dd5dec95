"""Count the operations, bytes and copies of a compiled training step and decoding step.

    python benchmarks/guard.py
    python benchmarks/guard.py --config configs/big.py --shape 8x128

Every field of the config is a flag, but a stack has one layer here, as XLA counts a loop over
layers as one. No count depends on the machine's speed. `tests/test_guard.py` holds them to bounds,
so that an accidental one-hot, copy of the state, or compilation for every batch is seen in time.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import command_line
import measuring
import workload
from workload import jax

from t2t_jax.config import Config
from t2t_jax.config.cost import model_flops_per_step
from t2t_jax.decoding.programs import proceed
from t2t_jax.extras.compile_only.hlo import Instruction, parse_program
from t2t_jax.modules.models import make_model
from t2t_jax.parallel.mesh import batch_layout, make_mesh
from t2t_jax.system.program import run
from t2t_jax.training.state import abstract_state, create_state
from t2t_jax.training.step import abstract_batch, compile_train_step

_NO_WORK = {"parameter", "get-tuple-element", "bitcast", "tuple", "while", "constant", "iota"}
_HOST = ("infeed", "outfeed", "send", "recv", "xla_python", "xla_ffi_python")


@dataclass(frozen=True)
class Guard(command_line.Benchmark):
    """Count the operations, bytes and copies of a config's steps."""

    shape: str = "32x32"
    """Batch of a training step: rows x tokens of each side of a row."""
    batch_size: int = 8
    """Sentences that are decoded together, with sources of 32 tokens and outputs of 48."""


def instructions(text: str, where: str = "entry") -> list[Instruction]:
    """Return the instructions of a compiled program that write an array.

    Args:
      text: the text of the program, `compiled.as_text()`.
      where: "entry" for the instructions that run once, "loops" for those in bodies of loops.
    """
    program = parse_program(text)
    parts = {program.entry}
    if where == "loops":
        loops = (each for _, each, _ in program.executed() if each.opcode == "while")
        parts = {body for each in loops for body, _ in program.runs_of_called(each)}
    return [
        each
        for part in parts
        for each in program.computations[part]
        if each.opcode not in _NO_WORK and not each.shape.startswith("(")
    ]


def _one_layer(config: Config) -> Config:
    depths = (f"model.num_{name}_layers" for name in ("encoder", "decoder"))
    return config.replace({depth: 1 for depth in depths if config.value(depth)})


def training_counts(config: Config, rows: int, length: int) -> dict[str, float]:
    """Count the operations, bytes and copies of a training step on a batch without padding."""
    config = _one_layer(config)
    vocab_size, mesh = config.data.vocab_size, make_mesh(config.parallel)
    model = make_model(config, vocab_size, mesh)
    state = abstract_state(config, model, mesh)
    batch = abstract_batch(batch_layout(mesh, rows, length), model.example(), length, length)
    lowered = compile_train_step(config, model, mesh).lower(state, batch)
    program = lowered.compile()
    text = program.as_text()
    tokens = rows * length
    formula = model_flops_per_step(
        config.model, vocab_size, tokens, tokens, source_length=length, target_length=length
    )
    once = instructions(text)
    logits = 4 * tokens * vocab_size
    num_parameters = sum(x.size for x in jax.tree.leaves(state.params))
    return {
        "flops_over_formula": lowered.cost_analysis()["flops"] / formula,
        "bytes_over_state": program.cost_analysis()["bytes accessed"] / (12 * num_parameters),
        "arrays_of_logits": sum(each.arrays[0].num_bytes >= logits for each in once),
        "copies_of_state": sum(
            each.opcode == "copy"
            and each.operands[0].startswith("state")
            and each.arrays[0].sizes != ()
            for each in once
        ),
        "host_transfers": sum(text.count(f" {name}(") + text.count(f'"{name}') for name in _HOST),
    }


def decoding_counts(config: Config, batch_size: int) -> dict[str, float]:
    """Count the operations, bytes and copies of a search, and of one position within it.

    The decoder has two layers, which are unrolled here: from a stack of one, none could be cut out.
    """
    config = _one_layer(config).replace({"model.num_decoder_layers": 2})
    params = workload.random_parameters(config)
    source_length, target_length = 32, 48
    fixed, fresh = workload.search_arguments(
        config, params, batch_size, source_length, target_length
    )
    arrays = fresh()
    lowered = proceed.lower(*fixed, *arrays)
    beams = config.decoding.beam_size
    formula = model_flops_per_step(
        config.model,
        config.data.vocab_size,
        batch_size * source_length,
        batch_size * beams,
        source_length=source_length,
        target_length=target_length * beams,
    )
    written = [each.arrays[0] for each in instructions(lowered.compile().as_text(), "loops")]
    sizes = {x.shape[-2:] for x in jax.tree.leaves(arrays[0])}
    weights = {each for each in sizes if len(each) == 2 and min(each) > 1}
    cached = {
        4 * batch_size * config.model.num_heads * config.model.key_size * slots
        for slots in (source_length, target_length * beams)
    }
    return {
        "flops_over_formula": lowered.cost_analysis()["flops"] / (formula / 3),  # forward alone
        "weights_written_each_time": sum(each.sizes in weights for each in written),
        "caches_written_each_time": sum(each.num_bytes in cached for each in written),
    }


def compilations(config: Config, lengths: Sequence[int]) -> int:
    """Count the programs that are compiled for training steps on batches of these lengths.

    A length that comes twice should count once. The first step takes the state as it was created,
    and each other step takes the state of the step before.
    """
    config = _one_layer(config)
    mesh = make_mesh(config.parallel)
    model = make_model(config, config.data.vocab_size, mesh)
    state, step = create_state(config, model, mesh), compile_train_step(config, model, mesh)
    for length in lengths:
        state, _ = step(state, workload.full_batch(config, mesh, 2, length))
    return step._cache_size()


def main(arguments: Sequence[str]) -> int:
    """Count what the command line asks for."""
    asked = command_line.command(Guard, arguments)
    rows, length = command_line.rows_and_tokens(asked.shape, "--shape")
    config = asked.fields
    columns = [
        {"of": "training"} | training_counts(config, rows, length),
        {"of": "decoding"} | decoding_counts(config, asked.batch_size),
        {"of": "16, 24, 16, 24 tokens", "compilations": compilations(config, (16, 24, 16, 24))},
    ]
    measuring.show(command_line.device_setting(asked), columns, asked.json)
    return 0


if __name__ == "__main__":
    run(main)
