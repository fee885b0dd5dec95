"""Profile training steps on hosts and devices, for xprof and Perfetto."""

import re
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack
from itertools import chain, count, islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import jax

from t2t_jax.errors import UserError, warn
from t2t_jax.parallel.processes import is_main
from t2t_jax.run.progress import PROFILE
from t2t_jax.system.atomic_file import writing_directory
from t2t_jax.system.bucket import on_this_machine
from t2t_jax.system.signals import SignalRequest

if TYPE_CHECKING:  # `watch` and `report` read profiles without importing training code
    from t2t_jax.run.meter import StepMeter
    from t2t_jax.run.preparing import Run

_T = TypeVar("_T")
_REQUESTED_STEPS = 10


def steps_of(text: str) -> tuple[int, int]:
    """Parse the first and the last step from a text such as `100:105`."""
    match = re.fullmatch(r"([0-9]{1,12}):([0-9]{1,12})", text)
    if not match or not 1 <= int(match[1]) <= int(match[2]):
        raise UserError(
            f"--profile-steps {text} is not FIRST:LAST, two steps counted from 1, as in 100:105"
        )
    return int(match[1]), int(match[2])


def check_profiled(steps: tuple[int, int] | None, num_train_steps: int) -> None:
    """Refuse to profile steps beyond the last training step."""
    if steps and steps[1] > num_train_steps:
        raise UserError(
            f"--profile-steps {steps[0]}:{steps[1]} goes beyond the last step, "
            f"training.num_train_steps={num_train_steps}; name earlier ones"
        )


def profiles_folder(workdir: Path) -> Path:
    """Return the local directory of the profiles of a run."""
    return on_this_machine(workdir / "profile")


def read_profiles(workdir: Path) -> list[Path]:
    """List the directories of the profiles of a run."""
    folder = profiles_folder(workdir)
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(path for path in paths if not path.name.startswith("."))


def profiled(
    run: "Run",
    meter: "StepMeter",
    batches: Iterator[_T],
    steps: tuple[int, int] | None,
    last_step: int,
    request: SignalRequest,
) -> Generator[_T, None, None]:
    """Yield the batches of training steps, and trace some of the steps.

    Process 0 traces `steps`. Any process traces its next ten steps on request. Each complete trace
    is a directory in `profiles_folder`; an interrupted trace leaves no files. Errors of the
    profiler are only warnings.

    Args:
      batches: the batches after the run's state.
      steps: the first and the last step to trace; finished steps are skipped.
      last_step: the step after which training ends or pauses.
    """

    def traced(first: int, last_traced: int) -> Generator[_T, None, None]:
        process_suffix = f"_process_{jax.process_index()}" if jax.process_index() else ""
        name, folder = f"steps_{first}_{last_traced}{process_suffix}", profiles_folder(run.workdir)
        names = chain([name], (f"{name}_{number}" for number in count(2)))
        path = next(folder / name for name in names if not (folder / name).exists())
        with ExitStack() as trace:
            with meter.during(PROFILE):
                _attempt(lambda: _begin(trace, path))
            for step, batch in enumerate(islice(batches, last_traced - first + 1), first):
                with jax.profiler.StepTraceAnnotation("train", step_num=step):
                    yield batch
            with meter.during(PROFILE):
                _attempt(trace.close)
        if path.exists():
            run.log.say(f"profile of steps {first:,} to {last_traced:,}: {path}")

    step = int(run.state.step)
    if not is_main():
        steps = None
    elif steps and steps[1] <= step:
        run.log.say(f"no profile of steps {steps[0]:,} to {steps[1]:,}: these steps are done")
    while step < last_step:
        last_traced = step
        if steps and steps[0] <= step + 1 <= steps[1]:
            last_traced = steps[1]
        elif request.take():
            last_traced = min(step + _REQUESTED_STEPS, last_step)
        if last_traced == step:
            yield from islice(batches, 1)
            step += 1
        else:
            yield from traced(step + 1, last_traced)
            step = last_traced


def _begin(trace: ExitStack, path: Path) -> None:
    """Start a profiler trace, which is written to a directory when the stack closes."""
    options = jax.profiler.ProfileOptions()
    options.python_tracer_level = 0  # the Python tracer would slow down the steps
    with ExitStack() as parts:
        folder = parts.enter_context(writing_directory(path))
        parts.enter_context(
            jax.profiler.trace(folder, create_perfetto_trace=True, profiler_options=options)
        )
        trace.enter_context(parts.pop_all())


def _attempt(work: Callable[[], None]) -> None:
    """Start or stop the profiler; turn errors into warnings, because training must continue."""
    try:
        work()
    except Exception as error:  # the profiler raises many kinds of errors
        warn(f"there is no profile of these steps: {error}")
