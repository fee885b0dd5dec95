"""One run on many machines: wherever it goes on, its loss curve is that of a run that stayed."""

from functools import partial

import jax
import numpy as np
import pytest

from t2t_jax.run.loading import load
from tests.trained import wait_for_step

MESH = ["--parallel.data=2", "--parallel.fsdp=2", "--parallel.tensor=2"]


@pytest.fixture(scope="module")
def stayed(tiny_run, tmp_path_factory):
    """The directory of the run on one device, undisturbed."""
    workdir = tmp_path_factory.mktemp("topologies") / "stayed"
    tiny_run.finish(workdir)
    return workdir


def _assert_same(tiny_run, workdir, stayed):
    curve, undisturbed = tiny_run.losses(workdir), tiny_run.losses(stayed)
    assert list(curve) == list(undisturbed)
    np.testing.assert_allclose(list(curve.values()), list(undisturbed.values()), rtol=1e-5)
    near = partial(np.testing.assert_allclose, atol=1e-5)
    jax.tree.map(near, load(workdir).params, load(stayed).params)


def _kill_after(step, programs, expected):
    """Kill a run once it tells of a step; before that it has to print something."""
    [program] = programs
    printed = wait_for_step(program, step)
    program.kill()
    program.communicate()
    assert expected in printed


@pytest.mark.thorough
def test_a_run_moves_from_8_devices_to_pmap_to_processes(tiny_run, stayed, tmp_path):
    workdir = tmp_path / "moved"
    _kill_after(5, tiny_run.start(workdir, *MESH, devices=8), "data 2 x fsdp 2 x tensor 2")
    pmap = ["--parallel.backend=pmap", "--parallel.tokens-per-device=128"]
    _kill_after(8, tiny_run.start(workdir, *pmap, devices=3), "data 3 x fsdp 1 x tensor 1")
    printed = tiny_run.finish(workdir, "--parallel.fsdp=4", devices=2, processes=2)
    assert "of 2 process(es): data 1 x fsdp 4 x tensor 1" in printed
    assert " of 12 begins" in printed
    assert "step 1 of 12" not in printed
    _assert_same(tiny_run, workdir, stayed)


@pytest.mark.parametrize(
    "processes",
    [pytest.param(2, marks=pytest.mark.thorough), pytest.param(4, marks=pytest.mark.slow)],
)
def test_a_run_on_shards_is_killed_and_goes_on_in_processes(tiny_run, tmp_path, processes):
    """Of 400 pairs in 8 shards, 2 are open together: an epoch has 4 windows."""
    flags = tiny_run.in_shards(tmp_path / "shards")
    stayed, workdir = tmp_path / "stayed", tmp_path / "moved"
    assert "400 pairs read" in tiny_run.finish(stayed, *flags)
    _kill_after(3, tiny_run.start(workdir, *flags), "400 pairs read")
    _kill_after(7, tiny_run.start(workdir, *flags, devices=2), "data 2 x fsdp 1 x tensor 1")
    printed = tiny_run.finish(workdir, *flags, processes=processes)
    assert f"of {processes} process(es)" in printed
    _assert_same(tiny_run, workdir, stayed)


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 4])
@pytest.mark.parametrize(("num_steps", "atol"), [(5, 1e-5), (50, 1e-3)])
def test_processes_train_the_quickstart_as_one_does(tiny_run, tmp_path, processes, num_steps, atol):
    """The real thing, dropout included.

    Training is chaotic: on one device, one unit in the last place of the initial parameters makes
    a difference of 1.4e-5 after 5 steps, and of 7e-4 (median 2.4e-6) after 50.
    """
    config = tiny_run.folder.parent / "quickstart"
    config.mkdir(exist_ok=True)
    (config / "tiny.py").write_text("from configs.quickstart import get_config\n")
    steps = [f"--training.num-train-steps={num_steps}", "--evaluation.num-sentences=8"]
    quickstart = tiny_run._replace(folder=config)
    quickstart.finish(tmp_path / "one", *steps)
    quickstart.finish(tmp_path / "several", *steps, processes=processes)
    one, several = (load(tmp_path / name).params for name in ("one", "several"))
    for a, b in zip(*map(jax.tree.leaves, (one, several)), strict=True):
        np.testing.assert_allclose(b, a, atol=atol)
        assert np.median(np.abs(b - a)) < 1e-5


@pytest.mark.slow
def test_a_run_in_bfloat16_shares_its_products_among_devices(tiny_run, stayed, tmp_path):
    few = ["--training.num-train-steps=4"]
    tiny_run.finish(tmp_path, "--model.compute-dtype=bfloat16", *few, *MESH, devices=8)
    curve, wide = tiny_run.losses(tmp_path), tiny_run.losses(stayed)
    np.testing.assert_allclose(list(curve.values()), list(wide.values())[:4], rtol=0.01)
