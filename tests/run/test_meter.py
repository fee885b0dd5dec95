"""The speed and the time left of a log's lines, by a clock that the test moves."""

import re
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import numpy as np
import pytest

from t2t_jax.config import TrainingConfig
from t2t_jax.parallel.devices import peak_memory
from t2t_jax.run.log import RunLog
from t2t_jax.run.meter import StepMeter
from t2t_jax.run.progress import EVALUATION, PhaseTimer
from t2t_jax.training.objective import LossSums
from t2t_jax.training.origin import Window
from t2t_jax.training.step import StepMetrics

TOKENS = 50.0
STEPS = 10


def _metrics():
    losses = LossSums(*(np.float32(x) for x in (100.0, 100.0, TOKENS)))
    number = np.float32(1.0)
    return StepMetrics(losses, number, number, np.int32(0), np.int32(0), {})


def _resident_bytes():
    status = Path("/proc/self/status").read_text()
    return 1024 * int(re.search(r"VmRSS:\s+(\d+) kB", status)[1])


@pytest.mark.parametrize("first_step", [0, 4])
def test_what_compilation_takes_is_in_no_speed_and_in_no_time_left(
    clock, first_step, tmp_path, monkeypatch
):
    log, lines, compiled = RunLog(tmp_path, first_step, STEPS), [], []

    def keep(step, figures, seconds_left, metrics):
        lines.append((step, figures["target_tokens_per_second"], seconds_left))
        assert figures["step_seconds"] == TOKENS / figures["target_tokens_per_second"]
        assert figures["host_memory_bytes"] == pytest.approx(_resident_bytes(), rel=0.5)

    monkeypatch.setattr(log, "training", keep)
    config = Mock(training=TrainingConfig(num_train_steps=STEPS, log_every_steps=2))
    run = Mock(log=log, progress=PhaseTimer(), config=config)
    run.mesh.size, run.checkpoints.window = 1, Window()
    with log:
        one = StepMeter(run, first_step)
        for step in range(first_step + 1, STEPS + 1):
            shape = (4, 8 * (1 + step // 7))  # another one from step 7 on
            with one.launching(shape):
                if shape not in compiled:
                    compiled.append(shape)
                    clock[0] += 100.0
            one.add(step, _metrics())
            clock[0] += 1.0
        with one.during(EVALUATION):
            pass
    assert len(compiled) == 2
    assert [step for step, _, _ in lines] == [*range(first_step + 2, STEPS + 1, 2)]
    for step, speed, left in lines:
        # Up to two newer steps have run by the time that the metrics of a step are read.
        assert TOKENS / 2 <= speed <= 4 * TOKENS
        assert left <= 2.0 * (STEPS - step)


def test_the_memory_of_devices_is_the_largest_peak_as_far_as_they_report_it():
    peaks = ({"peak_bytes_in_use": 7}, None, {"peak_bytes_in_use": 9, "bytes_in_use": 10}, {})
    devices = [SimpleNamespace(memory_stats=lambda stats=stats: stats) for stats in peaks]
    assert peak_memory(devices) == 9
    assert peak_memory(devices[1:2]) is None
