"""A test that a run that was killed and resumed ends with the same bits, and the cost of that.

A small model learns from the bundled corpus: twice without a stop, and once killed (SIGKILL) after
its first checkpoint and started again. The parameters at the end are compared bit for bit, with
XLA as it is and with `--xla_gpu_deterministic_ops=true`; the time of a step is given for both.
"""

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from on_accelerator.logs import seconds_of_a_step
from t2t_jax.workdir import read_log

_STEPS = 24
_FLAGS = {
    "XLA as it is": "",
    "--xla_gpu_deterministic_ops=true": "--xla_gpu_deterministic_ops=true",
}


def measure(tiny: bool) -> Iterator[dict[str, Any]]:
    """Measure this part, and yield its rows."""
    with tempfile.TemporaryDirectory() as folder:
        for number, (name, flag) in enumerate([*_FLAGS.items()][: 1 if tiny else None]):
            variables = dict(os.environ)
            variables["XLA_FLAGS"] = f"{variables.get('XLA_FLAGS', '')} {flag}".strip()
            workdirs = [Path(folder, f"{number}-{of}") for of in ("first", "second", "killed")]
            for workdir in workdirs[:2]:
                _train(workdir, variables, tiny).wait()
            killed = _kill_after_a_checkpoint(workdirs[2], variables, tiny)
            _train(workdirs[2], variables, tiny).wait()
            first, second, resumed = (_parameters(workdir) for workdir in workdirs)
            yield {
                "table": "runs",
                "compiled with": name,
                "steps": _STEPS,
                "killed after step": killed,
                "two runs are equal bit for bit": first == second,
                "the resumed run is equal bit for bit": first == resumed,
                "milliseconds a step": 1e3 * seconds_of_a_step(workdirs[0]),
            }


def _train(workdir: Path, environment: dict[str, str], tiny: bool) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "train.py", "--config=configs/quickstart.py"]
    command += [f"--workdir={workdir}", f"--training.num-train-steps={_STEPS}"]
    command += ["--training.log-every-steps=4", "--checkpoint.every-steps=8"]
    command += ["--checkpoint.keep=1", "--checkpoint.average=1", "--checkpoint.keep-best=False"]
    command += ["--evaluation.num-sentences=1", "--evaluation.num-samples=0"]
    if tiny:
        command += ["--model.d-model=32", "--model.d-ff=64", "--data.vocab-size=500"]
        command += ["--data.source-tokens-per-step=256", "--data.target-tokens-per-step=256"]
        command += ["--decoding.max-extra-length=5"]
    return subprocess.Popen(command, env=environment)


def _kill_after_a_checkpoint(workdir: Path, environment: dict[str, str], tiny: bool) -> int:
    """Kill a run once a checkpoint is on the disk, and return the last step of its log."""
    process = _train(workdir, environment, tiny)
    while process.poll() is None and not any(r["of"] == "checkpoint" for r in read_log(workdir)):
        time.sleep(0.05)
    process.send_signal(signal.SIGKILL)
    process.wait()
    return max((record["step"] for record in read_log(workdir)), default=0)


def _parameters(workdir: Path) -> list[bytes]:
    """Return the bytes of all arrays of parameters."""
    import jax

    import t2t_jax

    params = t2t_jax.load(workdir, average=1).params
    return [x.tobytes() for x in jax.device_get(jax.tree.leaves(params))]
