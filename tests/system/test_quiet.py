"""What Orbax says is left out while it works for this package, and nowhere else."""

import re

import pytest

from tests.programs import ROOT, run_python

STATE = """
import sys
from logging import getLogger
from absl.logging import get_absl_logger, get_verbosity
import gc, os, signal, warnings
def state():
    loggers = get_absl_logger(), getLogger("asyncio"), getLogger()
    return (
        sys.unraisablehook, sys.excepthook, [list(one.filters) for one in loggers],
        [list(one.handlers) for one in loggers], [one.level for one in loggers], get_verbosity(),
        gc.get_threshold(), signal.getsignal(signal.SIGINT), list(warnings.filters),
    )
"""


def python(body, said=""):
    done = run_python("-c", STATE + body)
    assert done.returncode == 0, done.stderr
    assert re.fullmatch(said, done.stderr), done.stderr


def test_loggers_and_hook_are_put_back_after_the_last_of_several_blocks():
    python("""
from t2t_jax.system.quiet import orbax_kept_quiet

before = state()
first, second = orbax_kept_quiet(), orbax_kept_quiet()
first.__enter__()
quiet = state()
assert quiet != before
second.__enter__()
first.__exit__(None, None, None)
assert state() == quiet
second.__exit__(None, None, None)
assert state() == before
""")


def test_a_hook_that_wraps_the_one_of_an_earlier_block_is_called_once():
    python("""
from t2t_jax.system.quiet import orbax_kept_quiet

heard = []
sys.unraisablehook = lambda unraisable: heard.append("first")
with orbax_kept_quiet():
    inner = sys.unraisablehook
    def wrapping(unraisable):
        heard.append("wrapping")
        inner(unraisable)
    sys.unraisablehook = wrapping
class Broken:
    def __del__(self):
        raise ValueError
with orbax_kept_quiet():
    Broken()
assert heard == ["wrapping", "first"], heard
assert sys.unraisablehook is wrapping
""")


@pytest.mark.thorough
def test_importing_and_loading_in_python_print_nothing_of_orbax_and_change_nothing_global():
    run = ROOT / "tests/goldens/runs/0.2.0/run"
    python(f"""
os.environ |= {{"TPU_ACCELERATOR_TYPE": "v5litepod-4", "TPU_WORKER_HOSTNAMES": "host"}}
# These do as they like; the last one imports boto3 where it is installed.
import jax, flax.linen, orbax.checkpoint, optax, tensorboardX
before = state()
import t2t_jax, t2t_jax.training.checkpoint, t2t_jax.run.loading, t2t_jax.run.trainer
assert state() == before, (before, state())
t2t_jax.load({str(run)!r})
assert state() == before, (before, state())
assert not any(name.startswith("tensorflow.") for name in sys.modules)
""")


def test_a_read_that_tensorstore_left_unfinished_is_not_reported():
    left = """
import asyncio
from t2t_jax.system.quiet import orbax_kept_quiet

async def fail(text):
    asyncio.get_running_loop().create_future().set_exception(ValueError(text))
    gc.collect()
with orbax_kept_quiet():
    asyncio.run(fail({!r}))
"""
    python(left.format("OUT_OF_RANGE: Error reading [tensorstore_spec='{}']"))
    python(left.format("another"), said=r"(?s).*Future exception was never retrieved.*another.*")
