"""Compare the speed of t2t_jax with that of other toolkits on the same work and machine.

    pip install -e '.[train,bench]'
    python benchmarks/peers.py train --flax-wmt ~/flax
    python benchmarks/peers.py decode --flax-wmt ~/flax
    python benchmarks/peers.py translate --workdir runs/base
    python benchmarks/peers.py train --systems pytorch flax

`train` takes whole training steps on batches without padding; `decode` searches for hypotheses of
one length, with the same random weights for all systems that can have them, and checks that these
find the same; `translate` runs whole programs that translate a file, from their start to their end.
In the first two every field of the config is a flag. The precision of matrix products (float32,
bfloat16, int8) belongs to the system, whatever the config says. A system is compared with t2t_jax
in the same precision, if that takes part, and t2t_jax in bfloat16 and int8 with t2t_jax in float32;
JSON compares all of them with t2t_jax in float32 as well.

Every system is a process of its own, which waits while another works. In a round each is measured
once, so whatever slows the machine for a while slows all of them; speeds are compared within a
round. The first time, with compilation, is reported apart and not counted. The modules in systems/
describe each system.
"""

import contextlib
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from pathlib import Path
from typing import Any

import command_line
import tyro
from systems.available import Kind, System, available_systems, build_mkl_fast_path
from systems.protocol import Decoding, Training, Work, Worker, call_program
from systems.results import Result, share_equal, show

from t2t_jax.commands.flag_table import OneRun
from t2t_jax.commands.flags import parse_flags
from t2t_jax.config import Config, DataConfig
from t2t_jax.data.corpus import open_corpus
from t2t_jax.errors import UserError
from t2t_jax.system.program import run
from t2t_jax.workdir import read_config

_ROOT = Path(__file__).parents[1]
_QUIET_LOAD = 0.5  # mean number of processes that are ready to run


@dataclass(frozen=True)
class Prepared(command_line.Benchmark):
    """The flags of the commands whose work systems prepare before it is measured."""

    systems: tuple[str, ...] = ()
    """Measure the systems with one of these texts in their names, and ours; none is all systems."""
    flax_wmt: Path | None = None
    """A checkout of github.com/google/flax, whose WMT example then takes part."""
    mkl_fast_path: bool = False
    """Measure PyTorch in float32 also with Intel's MKL made to use AVX-512 on processors of other
    makes."""


@dataclass(frozen=True)
class Train(Prepared):
    """Measure training steps."""

    shapes: tuple[str, ...] = ("32x32", "16x64", "8x128")
    """Batches: rows x tokens of each side of a row."""


@dataclass(frozen=True)
class Decode(Prepared):
    """Measure searches."""

    batch_sizes: tuple[int, ...] = (1, 8, 32)
    """Sentences decoded together."""
    beam_sizes: tuple[int, ...] = (1, 4)
    """Hypotheses kept for each sentence; 1 is greedy search."""
    source_length: int = 32
    """Tokens of a source."""
    target_length: int = 48
    """Tokens of a translation."""
    processes: int = 1
    """Times that all processes are started anew, each for all rounds. The place of the weights in
    memory, which then changes, makes up to a tenth of the time of one sentence."""


@dataclass(frozen=True)
class Translate:
    """Measure whole programs that translate a file."""

    workdir: OneRun = tyro.MISSING
    """Directory of a run in float32."""
    systems: tuple[str, ...] = ()
    """Measure the systems with one of these texts in their names, and ours; none is all systems."""
    lines: Path | None = None
    """File to translate; None is dev and test of the bundled corpus, 2,000 lines of English."""
    beam_sizes: tuple[int, ...] = (1, 4)
    """Hypotheses kept for each line; 1 is greedy search."""
    repeats: int = 5
    """Times that everything is measured, each in turn with all others."""
    json: bool = False
    """Print one JSON object for each system."""


def _train(arguments: Sequence[str]) -> None:
    import workload

    asked = command_line.command(Train, arguments)
    shapes = [command_line.rows_and_tokens(shape) for shape in asked.shapes]
    config = asked.fields
    with _systems("train", asked) as systems:
        for rows, length in shapes:
            inputs, targets = (
                workload.random_tokens(rows, length, config.data.vocab_size, seed).tolist()
                for seed in range(2)
            )
            work = Training(config.to_json(), inputs, targets)
            case = {"work": "train", "rows": rows, "length": length}
            with _workers(systems) as workers:
                results = [_prepare(worker, case, work, rows * length)[0] for worker in workers]
                _measure(results, [one.measure for one in workers], asked.repeats)
            show(case, "target_tokens", results, asked.json)


def _decode(arguments: Sequence[str]) -> None:
    import workload

    asked = command_line.command(Decode, arguments)
    with _temporary_folder() as folder, _systems("decode", asked) as systems:
        weights = _shared_weights(asked.fields, folder)
        for beam_size, rows in product(asked.beam_sizes, asked.batch_sizes):
            config = asked.fields.replace({"decoding.beam_size": beam_size})
            inputs = workload.random_tokens(rows, asked.source_length, config.data.vocab_size)
            work = Decoding(config.to_json(), inputs.tolist(), asked.target_length, str(weights))
            case = {"work": "decode", "beam_size": beam_size, "batch_size": rows}
            results: list[Result] = []
            for _ in range(asked.processes):
                with _workers(systems) as workers:
                    prepared = _prepare_searches(workers, case, work)
                    results = results or prepared
                    _measure(results, [one.measure for one in workers], asked.repeats)
            show(case, "tokens", results, asked.json)


def _shared_weights(config: Config, folder: Path) -> Path:
    """Write the random weights in another process, as this one never computes; return the path."""
    file, weights = folder / "config.json", folder / "weights"
    file.write_text(config.to_json(), encoding="utf-8")
    call_program("weights", ["-m", "systems.weights", file, weights])
    return weights


def _translate(arguments: Sequence[str]) -> None:
    asked: Translate = parse_flags(Translate, arguments, "peers.py translate")
    config = read_config(asked.workdir)
    if (dtype := config.model.compute_dtype) != "float32":
        raise UserError(
            f"{asked.workdir} computes in {dtype}, as its model.compute_dtype says, and is "
            "compared in float32; name a run in float32"
        )
    systems = _present(*available_systems("translate", asked.systems))
    with _temporary_folder() as folder:
        source = asked.lines or _bundled_lines(folder / "source")
        amount = len(_read(source))
        model = ["--to", "ctranslate2", folder / "model"]
        call_program("export", ["-m", "t2t_jax", "export", asked.workdir, *model])
        for beam_size in asked.beam_sizes:
            case = {"work": "translate", "lines": amount, "beam_size": beam_size}
            decoding = config.replace({"decoding.beam_size": beam_size})
            programs = [_program(one, asked.workdir, decoding, source, folder) for one in systems]
            results = [
                Result(system, amount, program())
                for system, program in zip(systems, programs, strict=True)
            ]
            ours, *others = [_read(folder / system.name) for system in systems]
            for result, theirs in zip(results[1:], others, strict=True):
                result.equal = share_equal(ours, theirs)
            _measure(results, programs, asked.repeats)
            show(case, "lines", results, asked.json)


def _program(
    system: System, workdir: Path, config: Config, source: Path, folder: Path
) -> Callable[[], float]:
    """Return a function that runs a system's whole program on a file and returns its seconds."""
    out, decoding = folder / system.name, config.decoding
    command: list[str | Path]
    if system.is_ours:
        command = [_ROOT / "eval.py", "translate", "--workdir", workdir]
        command += ["--input", source, "--output", out, "--beam-size", str(decoding.beam_size)]
        command += ["--quantize=int8"] if system.precision == "int8" else []
    else:
        command = ["-m", "systems.ctranslate_lines", folder / "model"]
        command += [workdir / "vocabulary.model", source, out, system.precision]
        settings = decoding.beam_size, decoding.length_penalty, decoding.max_extra_length
        command += map(str, settings)
    compiled = {"JAX_COMPILATION_CACHE_DIR": str(folder / "compiled")}  # empty at first
    return lambda: call_program(system.name, command, **compiled)


@contextlib.contextmanager
def _systems(kind: Kind, asked: Prepared) -> Iterator[list[System]]:
    """Return a context with the systems that can be measured here, t2t_jax first."""
    with contextlib.ExitStack() as stack:
        library = None
        if asked.mkl_fast_path:
            library = build_mkl_fast_path(stack.enter_context(_temporary_folder()))
        yield _present(*available_systems(kind, asked.systems, asked.flax_wmt, library))


@contextlib.contextmanager
def _workers(systems: Sequence[System]) -> Iterator[list[Worker]]:
    """Return a context with a new process for each system.

    Every case has new processes, because earlier work slows down CTranslate2's.
    """
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(Worker(system)) for system in systems]


def _present(systems: list[System], left_out: list[str]) -> list[System]:
    """Return the systems, and print why the comparison is not complete or fair."""
    for line in left_out:
        print(line, file=sys.stderr)
    if (load := os.getloadavg()[0]) > _QUIET_LOAD:
        print(
            f"the machine is busy (load {load:.1f}): wait until it is idle, for the peers that use "
            "OpenMP spin while they wait for a core, and can be slower tenfold",
            file=sys.stderr,
        )
    if left_out and all(one.is_ours for one in systems):
        raise UserError("there is nobody to compare with; the lines above say what each lacks")
    return systems


def _prepare(worker: Worker, case: dict[str, Any], work: Work, amount: int) -> tuple[Result, Any]:
    """Have a system prepare work, and return a result, still without seconds, and its output."""
    print(f"{worker.system.name} prepares {case}", file=sys.stderr, flush=True)
    output, seconds = worker.prepare(work)
    return Result(worker.system, amount, seconds), output


def _prepare_searches(
    workers: Sequence[Worker], case: dict[str, Any], work: Decoding
) -> list[Result]:
    """Have all systems prepare a search, and check that they find the same hypotheses.

    Raises:
      UserError: the outputs differ in length, or in more tokens than rounding explains.
    """
    lengths = [work.target_length] * len(work.inputs)
    results, ours = [], None
    for worker in workers:
        system = worker.system
        result, output = _prepare(worker, case, work, sum(lengths))
        if [len(row) for row in output] != lengths:
            raise UserError(
                f"{system.name} does not give {work.target_length} tokens for each sentence at "
                f"{case}, so there is nothing to compare; see systems/{system.module}.py"
            )
        ours = ours or output
        if system.least_equal is not None:
            result.equal = share_equal([*chain(*ours)], [*chain(*output)])
            if work.config.decoding.beam_size == 1 and result.equal < system.least_equal:
                raise UserError(
                    f"{system.name} finds {result.equal:.1%} of our tokens with our weights at "
                    f"{case}, less than {system.least_equal:.0%}, so the models differ; see "
                    "t2t_jax/extras/interchange/"
                )
        results.append(result)
    return results


def _measure(
    results: Sequence[Result], measures: Sequence[Callable[[], float]], rounds: int
) -> None:
    """Measure systems in turns.

    Args:
      results: the results of the systems, to which seconds are added.
      measures: for each system, a function that does the work and returns its seconds.
      rounds: the number of rounds.
    """
    for _ in range(rounds):
        for result, measure in zip(results, measures, strict=True):
            result.seconds.append(measure())


def _bundled_lines(path: Path) -> Path:
    corpus = open_corpus(DataConfig())
    lines = [line for split in ("dev", "test") for line in corpus.lines(split)[0]]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return path


def _read(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").removesuffix("\n").split("\n")


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def main(arguments: Sequence[str]) -> int:
    """Measure what the command line asks for."""
    commands = {"train": _train, "decode": _decode, "translate": _translate}
    name, *flags = arguments or [""]
    if name in ("-h", "--help"):
        print(__doc__)
    elif name in commands:
        commands[name](flags)
    else:
        raise UserError(f"peers.py takes a command first ({', '.join(commands)}), not {name!r}")
    return 0


if __name__ == "__main__":
    run(main)
