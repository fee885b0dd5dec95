"""Settings of every test: JAX on CPU, checked array annotations, reproducible hypothesis."""

import ctypes
import gc
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

# A shell's background job ignores SIGINT, and nohup SIGHUP. Programs that tests start inherit that,
# and would never end where a test stops them by the signal. A Python handler keeps the effect of
# nohup on the tests themselves, as a program that is started has default handling in its place.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, lambda *_: None)

# Before JAX is imported, for the workers of pytest and the programs that tests start as well.
# A test compares exact numbers, which differ between kinds of device.
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Compiling takes most of the time, and what is compiled runs for milliseconds.
os.environ.setdefault("JAX_DISABLE_MOST_OPTIMIZATIONS", "1")
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
if version("jaxlib").startswith("0.10."):
    # A third of the time: kernels are made without MLIR, which later versions always use, and a
    # program is compiled as one piece, where 32 would be spread over threads.
    os.environ.setdefault(
        "XLA_FLAGS", "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    )

import hypothesis
import jaxtyping
import pytest

import t2t_jax.config  # before the hook: it has no arrays, and refuses types by itself

# Check dtype and shape of every annotated array in the modules that are imported from here on: in
# those where shapes are the point, or with `T2T_JAX_CHECK_TYPES=all` in every module. With the
# "tower", an int fits where a float is annotated, as in Python's typing rules.
_SHAPES = ["t2t_jax.functional", "t2t_jax.kernels", "t2t_jax.modules"]
_ALL = os.environ.get("T2T_JAX_CHECK_TYPES") == "all"
jaxtyping.install_import_hook(
    "t2t_jax" if _ALL else _SHAPES,
    "beartype.beartype(conf=beartype.BeartypeConf(is_pep484_tower=True))",
)


def _checked_unless_local(*, typechecker: Any, checked: Any = jaxtyping.jaxtyped) -> Any:
    """Return what the hook decorates functions with, which leaves those within functions alone.

    They are made anew at every call, and to make their checks takes a tenth of all tracing.
    """
    check = checked(typechecker=typechecker)
    return lambda made: made if "<locals>" in made.__qualname__ else check(made)


if not _ALL:
    jaxtyping.jaxtyped = _checked_unless_local

# A worker and the programs that it starts compile nothing twice. Workers do not share: JAX writes
# an entry while others may read it.
_COMPILED = tempfile.TemporaryDirectory(prefix="t2t_jax_compiled_")
os.environ["JAX_COMPILATION_CACHE_DIR"] = _COMPILED.name

from t2t_jax.system.host import collect_garbage_seldom  # noqa: E402  (checked as all others)
from t2t_jax.system.quiet import keep_orbax_quiet  # noqa: E402
from tests.browser import browser as browser  # noqa: E402  (a fixture)
from tests.programs import ROOT, free_port  # noqa: E402

collect_garbage_seldom()

hypothesis.settings.register_profile(
    "t2t_jax",
    deadline=None,  # the first example of a test may compile
    derandomize=True,
    suppress_health_check=[hypothesis.HealthCheck.too_slow],
)
hypothesis.settings.load_profile("t2t_jax")

# Files of half a minute or more, the longest first.
_LONG = (
    "test_topologies.py",
    "test_guard.py",
    "test_trainer.py",
    "test_step.py",
    "test_meshes.py",
    "test_translator.py",
    "test_sweep.py",
    "test_compile.py",
    "test_scheduler.py",
    "test_benchmarks.py",
    "test_checkpoint.py",
    "test_object_storage.py",
    "test_notebook.py",
    "test_commands.py",
    "test_scoring.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run long files first, so that both workers are busy to the end; bound each test's time."""
    for item in items:
        if any(item.get_closest_marker(name) for name in ("slow", "faults", "cluster")):
            item.add_marker(pytest.mark.timeout(3600))
    place = {name: number for number, name in enumerate(_LONG)}
    items.sort(key=lambda item: place.get(item.path.name, len(_LONG)))


@pytest.fixture(scope="session")
def tiny_run(tmp_path_factory: pytest.TempPathFactory) -> "TinyRun":
    """A run of 12 steps over 400 real pairs, as a config file for `train.py`."""
    folder = tmp_path_factory.mktemp("tiny_run")
    (folder / "corpus").mkdir()
    from t2t_jax.data.corpus import open_corpus
    from tests.tiny import tiny_sizes

    bundled = open_corpus(t2t_jax.config.DataConfig())
    for split, count in (("train", 400), ("dev", 8)):
        for language, lines in zip(("en", "de"), bundled.lines(split), strict=True):
            text = "".join(f"{line}\n" for line in lines[:count])
            (folder / "corpus" / f"{split}.{language}").write_text(text, encoding="utf-8")
    fields = {
        **tiny_sizes(16, (1, 1), num_heads=4),
        "model.dropout_rate": 0.2,
        "model.compute_dtype": "float32",  # also where bfloat16 is faster
        "data.corpus": f"text:{folder / 'corpus'}",
        "data.cache_dir": str(folder / "cache"),
        "data.vocab_size": 300,
        "data.max_length": 64,
        "data.batching": "pack",  # one shape, compiled once
        "data.source_tokens_per_step": 512,
        "data.target_tokens_per_step": 512,
        "training.num_train_steps": 12,
        "training.warmup_steps": 20,
        "training.learning_rate_factor": 0.1,  # at a high one, rounding grows from step to step
        "training.log_every_steps": 1,
        "evaluation.every_steps": 100,
        "evaluation.num_sentences": 4,
        "evaluation.num_samples": 1,
        "decoding.max_extra_length": 10,
        "checkpoint.every_minutes": None,
        "checkpoint.every_steps": 2,
        "checkpoint.keep": 2,
        "checkpoint.average": 1,
    }
    (folder / "without_dev").mkdir()
    for language in ("en", "de"):
        shutil.copy(folder / "corpus" / f"train.{language}", folder / "without_dev")
    (folder / "tiny.py").write_text(
        "from t2t_jax import Config\n\n\ndef get_config() -> Config:\n"
        f"    return Config().replace({fields!r})\n"
    )
    return TinyRun(folder)


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], ModuleType]:
    """A function that imports a module of the benchmarks by its name."""
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return import_module


_PLANTED = """
import os, runpy, sys, time
from pathlib import Path
from t2t_jax.data.batching import Batches
from t2t_jax.errors import UserError

prefetch = Batches.prefetch
if {where}:
    def planted(self, first, *others):
        for step, batch in enumerate(prefetch(self, first, *others), first + 1):
            {fault}
            yield batch
    Batches.prefetch = planted
get_config = runpy.run_path({path!r})["get_config"]
"""


class TinyRun(NamedTuple):
    """Where the tiny run is, and how it is started as a user would."""

    folder: Path

    @property
    def config(self) -> t2t_jax.config.Config:
        """The config that the file describes."""
        from t2t_jax.config.file import load_config

        return load_config(str(self.folder / "tiny.py"))

    @property
    def without_dev(self) -> dict[str, str]:
        """The field that leaves evaluations away, which take longer than a few steps."""
        return {"data.corpus": f"text:{self.folder / 'without_dev'}"}

    def start(
        self, workdir: Path, *flags: str, devices: int = 1, processes: int = 1
    ) -> list[subprocess.Popen[str]]:
        """Start `train.py`, in one or several processes with so many devices each."""
        environment = {"JAX_NUM_CPU_DEVICES": str(devices), "PYTHONUNBUFFERED": "1"}
        command = ["train.py", f"--config={self.folder / 'tiny.py'}", f"--workdir={workdir}"]
        place = f"127.0.0.1:{free_port()}"
        started = []
        for number in range(processes):
            meet = [f"--coordinator={place}", f"--num-processes={processes}"]
            together = [*meet, f"--process-id={number}"] if processes > 1 else []
            started.append(
                subprocess.Popen(
                    [sys.executable, *command, *flags, *together],
                    cwd=ROOT,
                    env=os.environ | environment,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    text=True,
                )
            )
        return started

    def finish(self, workdir: Path, *flags: str, **where: int) -> str:
        """Run `train.py` to its end, which has to be a good one; returns what process 0 printed."""
        started = self.start(workdir, *flags, **where)
        ended = [program.communicate(timeout=300) for program in started]
        for program, (printed, errors) in zip(started, ended, strict=True):
            assert program.returncode == 0, printed + errors
        return ended[0][0]

    def with_fault(self, folder: Path, where: str, fault: str) -> "TinyRun":
        """Return this run with a fault before each step, as text of Python, where a text holds."""
        text = _PLANTED.format(where=where, fault=fault, path=str(self.folder / "tiny.py"))
        (folder / "tiny.py").write_text(text)
        return self._replace(folder=folder)

    def in_shards(self, folder: Path) -> list[str]:
        """Write the 400 pairs as 8 shards; returns the flags that train on 2 at a time."""
        folder.mkdir()
        for language in ("en", "de"):
            lines = (self.folder / "corpus" / f"train.{language}").read_text().splitlines(True)
            for shard in range(8):
                own = lines[50 * shard : 50 * (shard + 1)]
                (folder / f"train-{shard}.{language}").write_text("".join(own))
        return [f"--data.corpus=shards:{folder}/train-*.{{language}}", "--data.window=2"]

    @staticmethod
    def losses(workdir: Path) -> dict[int, float]:
        """The training loss of each step, as the log has it."""
        lines = (workdir / "log.jsonl").read_text(encoding="utf-8").splitlines()
        records = [json.loads(line) for line in lines]
        return {record["step"]: record["loss"] for record in records if record["of"] == "train"}


@pytest.fixture
def tables(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A process that has registered nothing; what the test registers is forgotten after it."""
    from t2t_jax.config import registry, running

    tables = registry.REGISTRIES.values()
    before = [(table, dict(table.registered_parts)) for table in tables]
    for table in tables:
        table.registered_parts.clear()
        table.rows.clear()
    monkeypatch.setattr(running, "_seen", set())
    monkeypatch.delenv(registry.FILES, raising=False)
    yield
    for table, parts in before:
        table.rows.clear()
        table.registered_parts.clear()
        table.registered_parts.update(parts)


@pytest.fixture(scope="module")
def forgotten_parts() -> Iterator[None]:
    """Forget, at the end of the file, the parts that it registers."""
    from t2t_jax.config.registry import REGISTRIES

    before = [(table, dict(table.registered_parts)) for table in REGISTRIES.values()]
    yield
    for table, parts in before:
        table.registered_parts.clear()
        table.registered_parts.update(parts)


@pytest.fixture(scope="session", autouse=True)
def quiet_orbax() -> None:
    """As in every program: what Orbax leaves behind would fail a later test with its complaint."""
    keep_orbax_quiet()


_MEMORY = 3 << 30
"""Bytes that a worker may take before it forgets the programs that it has compiled."""
_MORE_MEMORY = 1 << 30
"""Bytes that it may take in addition to what it still has after that."""


@pytest.fixture(scope="session")
def memory_limit() -> list[int]:
    """The bytes at which this worker forgets its programs, as the one item of a list."""
    return [_MEMORY]


def pytest_runtest_logfinish() -> None:
    """Leave what a test has made, if that is much, to no later search for garbage.

    Every program that reads a checkpoint has Python's collector look for garbage. With all that JAX
    keeps of the tests before, it would take a third of a second each time.
    """
    if any(gc.get_count()[1:]):  # the collector has run since: 100,000 objects were made
        gc.collect(1)
        gc.freeze()


@pytest.fixture(scope="module", autouse=True)
def forgotten_programs(memory_limit: list[int]) -> Iterator[None]:
    """Compiled programs of all files together take gigabytes, so they are forgotten in between."""
    yield
    if "jax" in sys.modules and _memory_taken() > memory_limit[0]:
        sys.modules["jax"].clear_caches()
        gc.unfreeze()
        gc.collect()
        with suppress(AttributeError):  # a C library other than glibc
            ctypes.CDLL(None).malloc_trim(0)
        memory_limit[0] = max(_MEMORY, _memory_taken() + _MORE_MEMORY)


def _memory_taken() -> int:
    """Return the bytes of memory that this process has; 0 where nothing tells."""
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    except OSError:
        return 0
    return pages * os.sysconf("SC_PAGE_SIZE")
