"""Processes that meet, agree, and write and read checkpoints together: real ones, on loopback."""

import os
import socket
import subprocess
import sys
import threading
from contextlib import contextmanager
from types import ModuleType

import jax
import pytest
from jax._src.clusters import cloud_tpu_cluster
from jax._src.clusters.cluster import ClusterEnv
from jax._src.clusters.k8s_cluster import K8sCluster

from t2t_jax.errors import UserError
from t2t_jax.parallel import processes
from t2t_jax.parallel.processes import RollCall
from tests.programs import free_port, wait_until

# What the processes of these tests do, and the checkpoints that the tests themselves write and
# read: parameters in parts, each on a device of its own, as far as there are devices.
_COMMON = """
import sys
from pathlib import Path
import jax, jax.numpy as jnp, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec as P
from t2t_jax.config import Config
from t2t_jax.errors import UserError
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.training.origin import Identity
from t2t_jax.training.state import TrainState

CONFIG = Config().replace({"checkpoint.every_steps": 1})

def state(step, mesh, axis="data"):
    def put(values, *axes):
        sharding = NamedSharding(mesh, P(*axes))
        return jax.make_array_from_callback(values.shape, sharding, lambda index: values[index])
    values = np.random.default_rng(step).normal(size=(8, 12)).astype(np.float32)
    values[0, :2] = -0.0, np.nan
    params = {"rows": put(values, axis), "columns": put(values, None, axis), "all": put(values)}
    counts = [put(np.asarray(n, np.int32)) for n in (step, 1, 2)]
    moments = {"mu": put(2 * values, axis)}
    return TrainState(counts[0], params, moments, *counts[1:])

def like(x):
    return jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding)

def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert a.sharding == b.sharding
        for x, y in zip(a.addressable_shards, b.addressable_shards, strict=True):
            bits = (np.asarray(one.data).view(np.uint32) for one in (x, y))
            np.testing.assert_array_equal(*bits)

def save(workdir, steps, mesh, axis="data"):
    checkpoints = Checkpoints(workdir, Identity(CONFIG, {}))
    for step in steps:
        checkpoints.save(state(step, mesh, axis))
    checkpoints.close()

def resume(workdir, mesh, axis="data"):
    checkpoints = Checkpoints(workdir, Identity(CONFIG, {}))
    try:
        restored = checkpoints.restore(jax.tree.map(like, state(0, mesh, axis)))
        assert_same(restored, state(int(restored.step), mesh, axis))
        return int(restored.step)
    finally:
        checkpoints.close()
"""

_TOGETHER = f"""{_COMMON}
import socket
from t2t_jax.parallel.processes import Agreement, agree, broadcast_from_main, check_same, hosts
from t2t_jax.parallel.processes import failing_process, is_main, join
from t2t_jax.parallel.processes import locked
import t2t_jax.parallel.processes

process, coordinator, root = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
join(coordinator, 2, process)
assert (jax.process_count(), jax.process_index(), is_main()) == (2, process, process == 0)
mesh = Mesh(np.asarray(jax.devices()), ("data",))
assert mesh.size == 4

# Numbers.
assert (agree(process + 5), broadcast_from_main(7 - process)) == (6, 7)
assert (failing_process(True), failing_process(process == 0)) == (None, 1)
assert failing_process(process == 1) == 0
check_same({{"the config": "same", "the vocabulary": "same"}})
try:
    check_same({{"the config": "same", "the vocabulary": str(process)}})
    raise AssertionError
except UserError as error:
    assert str(error).startswith("the vocabulary of process 1 differs from process 0; "), error

# Agreements between steps whose devices talk to each other, and processes that are not in step.
rows, whole = NamedSharding(mesh, P("data")), NamedSharding(mesh, P())
def add_gradient(w, x):
    return w + 1e-3 * (x.T @ jnp.tanh(x @ w))
step = jax.jit(add_gradient, out_shardings=whole, donate_argnums=0)
weights = jax.jit(lambda: jnp.ones((64, 64)), out_shardings=whole)()
inputs = jax.jit(lambda: jnp.ones((16, 64)), out_shardings=rows)()
agreement, agreed = Agreement(), []
for number in range(120):
    weights = step(weights, inputs)
    agreed.append(agreement(number if number % 10 == 3 + process else 0, number + process / 4))
    if number % 20 == 10 + process:
        assert sum(float(x) for x in np.ones(20000)) == 20000  # one is busy, the other ahead
expected = [n if n % 10 in (3, 4) else 0 for n in range(118)]
assert agreed == [0, 0, *expected], agreed
assert agreement.seconds.tolist() == [117.0, 117.25], agreement.seconds
assert hosts() == (socket.gethostname(),) * 2

# A directory that both see, and one that each has for itself.
with locked(root / "run"):
    pass
t2t_jax.parallel.processes._SECONDS_TO_BE_SEEN = 0.2
try:
    with locked(root / f"own{{process}}"):
        raise AssertionError
except UserError as error:
    assert "is not the same directory on process 1 as on process 0" in str(error), error

# Checkpoints: those of one process, those of both, and one that only process 0 can read.
assert resume(root / "of_one", mesh) == 2
save(root / "of_two", [1, 2, 3], mesh)
assert resume(root / "of_two", mesh) == 3
if process == 1:
    import shutil
    shutil.copytree(root / "of_two", root / "seen_by_1")
    shutil.rmtree(root / "seen_by_1" / "checkpoints" / "3" / "params")
agree(0)
assert resume(root / ("seen_by_1" if process else "of_two"), mesh) == 2
save(root / "of_two", [4], mesh)
checkpoints = Checkpoints(root / "best", Identity(Config(), {{}}))
assert checkpoints.save_if_best(state(1, mesh), 30.0 + process, {{}})
assert not checkpoints.save_if_best(state(2, mesh), 30.0 + process, {{}})
checkpoints.close()
print("done", process)
"""

_ALONE = f"""{_COMMON}
root = Path(sys.argv[1])
for size in (1, 4, 2):
    assert resume(root / "of_two", Mesh(np.asarray(jax.devices()[:size]), ("data",))) == 4
assert (root / "of_two" / "damaged" / "3").exists()
save(root / "of_four", [5], Mesh(np.asarray(jax.devices()), ("data",)))
for size in (1, 2):
    assert resume(root / "of_four", Mesh(np.asarray(jax.devices()[:size]), ("data",))) == 5
print("done")
"""

_SAVE = f"""{_COMMON}
save(Path(sys.argv[1]), [1, 2], Mesh(np.asarray(jax.devices()), ("data",)))
"""


def start(program, *arguments, devices=1, **environment):
    flags = {"JAX_NUM_CPU_DEVICES": str(devices)}
    return subprocess.Popen(
        [sys.executable, "-c", program, *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu", **flags, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(*programs):
    """The output of programs that end well, and what they said to stderr."""
    said = [program.communicate(timeout=300) for program in programs]
    for program, (_, errors) in zip(programs, said, strict=True):
        assert program.returncode == 0, errors
    return said


def finish_two(program, folder):
    """What two processes that have two devices each said, at their good end."""
    coordinator = f"127.0.0.1:{free_port()}"
    return finish(*[start(program, n, coordinator, folder, devices=2) for n in (0, 1)])


@pytest.mark.thorough
def test_two_processes_agree_and_their_checkpoints_are_read_by_any_number(tmp_path):
    finish(start(_SAVE, tmp_path / "of_one"))
    said = finish_two(_TOGETHER, tmp_path)
    assert [output.splitlines()[-1] for output, _ in said] == ["done 0", "done 1"]
    warnings = [line for _, errors in said for line in errors.splitlines() if "warning:" in line]
    (warning,) = warnings  # of process 0
    assert "cannot be read (by another process, whose error gives the reason)" in warning
    assert "the run resumes from step 2" in warning
    (alone,) = finish(start(_ALONE, tmp_path, devices=4))
    assert alone[0].splitlines()[-1] == "done"


_REPLICATED = f"""{_COMMON}
import shutil
from t2t_jax.parallel.processes import agree, join

process, coordinator, root = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
join(coordinator, 2, process)
mesh = Mesh(np.asarray(jax.devices()), ("data",))
save(root / "run", [1, 2], mesh, axis=None)
if process == 0:
    shutil.copytree(root / "run", root / "no_arrays")
    for item in ("params", "progress"):
        shutil.rmtree(root / "no_arrays" / "checkpoints" / "2" / item)
    shutil.copytree(root / "no_arrays", root / "damaged")
agree(0)
assert resume(root / ("no_arrays" if process else "run"), mesh, axis=None) == 2
assert resume(root / ("run" if process else "damaged"), mesh, axis=None) == 1
print("done", process)
"""


@pytest.mark.thorough
def test_process_0_reads_a_replicated_state_for_all_processes(tmp_path):
    # Each process has its own copy of the run. That of process 1 lacks the arrays at first, then
    # that of process 0, so that both go on from the state before.
    said = finish_two(_REPLICATED, tmp_path)
    assert [output.splitlines()[-1] for output, _ in said] == ["done 0", "done 1"]
    assert "the run resumes from step 1" in said[0][1]


_FULL_DISK = f"""{_COMMON}
import orbax.checkpoint as ocp
from orbax.checkpoint._src.path import atomicity
from orbax.checkpoint._src.serialization import serialization
from t2t_jax.parallel.processes import join
from t2t_jax.system import retries
from t2t_jax.training import checkpoint_files

process, coordinator, root = int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])
join(coordinator, 2, process)
mesh = Mesh(np.asarray(jax.devices()), ("data",))
retries.PAUSES, failures = (0.3, 0.3), []

def meets_a_full_disk(module, name):
    write = getattr(module, name)
    async def full(*arguments, **settings):
        if name in failures:
            failures.remove(name)
            raise OSError(28, "No space left on device")
        return await write(*arguments, **settings)
    setattr(module, name, full)

remove_tree = checkpoint_files.remove_tree
def remove(path):
    if "remove_tree" in failures:
        failures.remove("remove_tree")
        raise OSError(5, "Input/output error")
    remove_tree(path)
checkpoint_files.remove_tree = remove

meets_a_full_disk(ocp.JsonCheckpointHandler, "_save_fn")
meets_a_full_disk(serialization, "async_serialize_from_host")
meets_a_full_disk(atomicity, "on_commit_callback")
checkpoints = Checkpoints(root / "run", Identity(CONFIG, {{}}))
checkpoints.save(state(1, mesh))
for step, names in enumerate([["_save_fn", "remove_tree"], [], ["on_commit_callback"] * 2], 1):
    checkpoints.wait()
    failures += names if process == 0 else [] if names else ["async_serialize_from_host"]
    checkpoints.save(state(2 * step, mesh))
    assert checkpoints.save(state(2 * step + 1, mesh)) == 2 * step + 1
    assert not failures
failures += ["on_commit_callback"] if process == 0 else []
assert not checkpoints.save_if_best(state(7, mesh), 30.0, {{}})
assert checkpoints.save_if_best(state(8, mesh), 20.0, {{}})
failures += ["on_commit_callback"] * 4 if process == 0 else []
checkpoints.save(state(9, mesh))
try:
    checkpoints.save(state(10, mesh))
except UserError as error:
    print(retries.may_pass(error), error, file=sys.stderr)
"""


@pytest.mark.thorough
def test_processes_try_together_to_write_a_checkpoint_that_met_a_full_disk(tmp_path):
    """A process that waits for one that has failed would do so for minutes."""
    said = finish_two(_FULL_DISK, tmp_path)
    assert [errors.count("tries again in 0.3 s") for _, errors in said] == [7, 7]
    assert [errors.count("continues without these best parameters") for _, errors in said] == [1, 1]
    last = [errors.splitlines()[-1] for _, errors in said]
    assert all("True a checkpoint in " in line for line in last)
    assert "No space left on device" in last[0]
    assert "another process could not write its part; see its error message" in last[1]
    assert sorted(path.name for path in (tmp_path / "run" / "best").iterdir()) == ["8"]
    kept = {path.name for path in (tmp_path / "run" / "checkpoints").iterdir()}
    assert kept >= {"1", "3", "5", "7"}
    assert not kept & {"2", "4", "6", "10"}


_AS_SLURM_SAYS = """
import os, signal
import jax
from t2t_jax.errors import UserError
from t2t_jax.parallel.processes import agree, bound_together, join
join()
assert jax.process_count() == 2 and agree(jax.process_index()) == 1
try:
    with bound_together():
        if jax.process_index() == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        agree(0)
except UserError as error:
    print(error, flush=True)
    os._exit(2)
"""


def test_processes_of_slurm_meet_and_one_that_is_killed_ends_the_other_in_a_line():
    # JAX takes the port from the number of the job.
    job = free_port(range(61440, 65536)) - 61440
    common = {
        "SLURM_JOB_ID": str(job),
        "SLURM_STEP_NODELIST": "127.0.0.1",
        "SLURM_NTASKS": "2",
        "SLURM_STEP_NUM_TASKS": "2",
    }
    first, second = (
        start(_AS_SLURM_SAYS, SLURM_PROCID=f"{n}", SLURM_LOCALID=f"{n}", **common) for n in (0, 1)
    )
    output, errors = first.communicate(timeout=300)
    second.communicate(timeout=300)
    assert (first.returncode, second.returncode) == (2, -9), errors
    assert output.splitlines()[-1].startswith("another process of this run is gone (")


_WAITS = """
import os, sys
from t2t_jax.errors import UserError
from t2t_jax.parallel.processes import join
try:
    join(sys.argv[1], 4, int(sys.argv[2]), minutes=0.15)
except UserError as error:
    print(error, flush=True)
    os._exit(2)
"""


@pytest.mark.thorough
@pytest.mark.parametrize(
    "named",
    [
        {0: "2 of 4 processes are missing: 1, 3", 2: "process 0 is connected, and its"},
        {1: "process 0 does not answer process 1"},
    ],
)
def test_others_that_do_not_come_are_named_by_an_error_in_one_line(named):
    place = f"127.0.0.1:{free_port()}"
    programs = [start(_WAITS, place, process) for process in named]
    for program, who in zip(programs, named.values(), strict=True):
        output, _ = program.communicate(timeout=300)
        assert program.returncode == 2
        (line,) = output.splitlines()
        assert line.startswith(f"the processes did not connect at {place} within 0.15 min (")
        assert who in line


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        (("127.0.0.1:1", 2, None), "go together"),
        ((None, 2, 0), "go together"),
        ((None, None, 0), "go together"),
        (("127.0.0.1", 2, 0), "not HOST:PORT"),
        (("127.0.0.1:http", 2, 0), "not HOST:PORT"),
        (("127.0.0.1:1", 2, 2), "counted from 0 to 1"),
        (("127.0.0.1:1", 2, -1), "counted from 0 to 1"),
    ],
)
def test_arguments_that_do_not_fit_are_refused(arguments, named):
    with pytest.raises(UserError, match=named):
        processes.join(*arguments)


def _set_environment(monkeypatch, environment):
    """Set variables as a scheduler does, and no others of any scheduler."""
    for name in list(os.environ):
        if name.startswith(("SLURM_", "OMPI_", "KUBERNETES_", "TPU_", "MEGASCALE_", "JOB_")):
            monkeypatch.delenv(name)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "JOB_COMPLETION_INDEX": "0"}
_STEP = {"SLURM_JOB_ID": "7", "SLURM_STEP_NODELIST": "a", "SLURM_PROCID": "0", "SLURM_LOCALID": "0"}
_RANK = {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}


@pytest.mark.parametrize(
    ("environment", "meets"),
    [
        ({}, False),
        ({**_STEP, "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "4"}, True),
        ({**_STEP, "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "1"}, False),
        # In the shell of an allocation, or the script of a job, of four tasks.
        ({**_STEP, "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"}, False),
        ({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_PROCID": "0"}, False),
        ({**_RANK, "OMPI_COMM_WORLD_SIZE": "2", "OMPI_MCA_orte_hnp_uri": "1.0;tcp://a:1"}, True),
        ({**_RANK, "OMPI_COMM_WORLD_SIZE": "1"}, False),
        # Any pod has the first of these; and there is no TPU.
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, False),
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, False),
    ],
)
def test_the_environment_says_whether_there_are_others(monkeypatch, environment, meets):
    _set_environment(monkeypatch, environment)
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **_: calls.append(args))
    processes.join()
    assert calls == [(None, None, None, None)] * meets
    processes.join(num_processes=1)
    assert len(calls) == meets


@pytest.fixture
def open_mpi(monkeypatch):
    """What `mpirun -np 4` of Open MPI 5 on node1 tells rank 1, and what JAX is told."""
    variables = {"SIZE": "4", "RANK": "1", "LOCAL_SIZE": "2", "LOCAL_RANK": "1"}
    for name, value in variables.items():
        monkeypatch.setenv(f"OMPI_COMM_WORLD_{name}", value)
    monkeypatch.setenv("PMIX_NAMESPACE", "prterun-node1-4711@1")
    for name in ("JAX_LOCAL_DEVICE_IDS", "SLURM_STEP_NUM_TASKS", "OMPI_MCA_orte_hnp_uri"):
        monkeypatch.delenv(name, raising=False)
    calls = []
    monkeypatch.setattr(jax.distributed, "initialize", lambda *args, **_: calls.append(args))
    return calls


def test_processes_of_open_mpi_5_meet_on_the_host_of_mpirun(open_mpi, monkeypatch):
    processes.join()
    processes.join("node7:8476")  # the others are known
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_SIZE", "4")
    processes.join()  # all on one host
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "0")
    processes.join()
    (place, *first), given, alone, main = open_mpi
    host, port = place.split(":")
    assert (host, *first) == ("node1", 4, 1, 1)
    assert 61440 <= int(port) < 65536
    assert given == ("node7:8476", 4, 1, 1)
    assert alone == (f"127.0.0.1:{port}", 4, 1, 1)
    assert main == (f"127.0.0.1:{port}", 4, 0, 1)


@pytest.mark.parametrize(
    ("name", "value"), [("PMIX_NAMESPACE", "887685121"), ("OMPI_COMM_WORLD_RANK", "0")]
)
def test_open_mpi_5_whose_process_0_may_be_anywhere_needs_a_coordinator(
    open_mpi, monkeypatch, name, value
):
    monkeypatch.setenv(name, value)  # no host is named; process 0 is not on node1
    with pytest.raises(UserError, match=r"does not name the host of process 0; add --coordinator"):
        processes.join()
    assert open_mpi == []


def test_the_roll_call_listens_at_the_address_of_the_coordinator_only():
    roll_call, port = RollCall(), free_port()
    thread = threading.Thread(target=roll_call._listen, args=("127.0.0.1", port))
    thread.start()
    wait_until(lambda: 0 in roll_call._present)
    socket.create_connection(("127.0.0.1", port), timeout=5).close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(("127.0.0.2", port), timeout=5)
    roll_call._over.set()
    thread.join()


@contextmanager
def on_tpus():
    """Let JAX be configured as on a machine with TPUs."""
    platforms = jax.config.values["jax_platforms"]
    jax.config.update("jax_platforms", "tpu,cpu")
    try:
        yield
    finally:
        jax.config.update("jax_platforms", platforms)


@pytest.mark.parametrize(
    ("environment", "meets"),
    [
        ({"TPU_WORKER_HOSTNAMES": "a,b"}, True),
        ({"TPU_WORKER_HOSTNAMES": "localhost"}, False),
        ({"TPU_WORKER_HOSTNAMES": "a", "MEGASCALE_NUM_SLICES": "2"}, True),
        # A pod of a job that has one host.
        ({**_POD, "TPU_WORKER_HOSTNAMES": "a"}, False),
        ({"TPU_SKIP_MDS_QUERY": "1"}, False),
        ({}, True),
    ],
)
def test_a_tpu_says_whether_it_is_one_of_a_pod(monkeypatch, environment, meets):
    _set_environment(monkeypatch, environment)
    with on_tpus():
        assert processes._has_others() == meets


def test_pods_of_several_slices_are_processes_of_one_training(monkeypatch):
    # As GKE tells the pods of a JobSet with 2 slices of 2 hosts.
    job = {
        "KUBERNETES_SERVICE_HOST": "10.0.0.1",
        "JOB_COMPLETION_INDEX": "1",
        "TPU_WORKER_HOSTNAMES": "big-train-1-0.big,big-train-1-1.big",
        "TPU_WORKER_ID": "1",
        "MEGASCALE_NUM_SLICES": "2",
        "MEGASCALE_SLICE_ID": "1",
        "MEGASCALE_COORDINATOR_ADDRESS": "localhost:8080",
    }
    for name, value in job.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(cloud_tpu_cluster, "running_in_cloud_tpu_vm", True)
    found = ClusterEnv.auto_detect_unset_distributed_params(None, None, None, None, None, 1)
    assert found == ("localhost:8482", 4, 3, None)
    with on_tpus():
        assert processes._has_others()


@pytest.fixture
def pod(monkeypatch):
    """The environment of a pod whose job is one of several."""
    _set_environment(monkeypatch, _POD)


@pytest.mark.usefixtures("pod")
def test_a_pod_that_cannot_ask_for_the_others_does_not_train_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", None)
    expected = r"needs kubernetes, .*\[kubernetes\]'; or pass --coordinator"
    with pytest.raises(UserError, match=expected):
        processes.join()


@pytest.mark.usefixtures("pod")
def test_a_pod_that_may_not_ask_for_the_others_is_told_of_its_rights(monkeypatch):
    monkeypatch.setitem(sys.modules, "kubernetes", ModuleType("kubernetes"))
    forbidden = type("ApiException", (Exception,), {"status": 403, "reason": "Forbidden"})
    monkeypatch.setattr(K8sCluster, "_ApiException", forbidden, raising=False)

    def initialize(*_, **__):
        with K8sCluster._handle_api_exception():
            raise forbidden

    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(UserError, match=r"service account .* may not read.*--num-processes 1$"):
        processes.join()


def test_an_environment_that_jax_does_not_understand_is_an_error_with_a_way_out(monkeypatch):
    def initialize(*_, **__):
        raise ValueError("coordinator_address should be defined.")

    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "2")
    monkeypatch.setattr(jax.distributed, "initialize", initialize)
    with pytest.raises(UserError, match=r"coordinator_address should.*--num-processes 1$"):
        processes.join()


def test_one_process_agrees_with_itself_at_once():
    agreement = processes.Agreement()
    assert [agreement(n) for n in (0, 3, 0)] == [0, 3, 0]
    assert [processes.agree(4), processes.broadcast_from_main(-2)] == [4, -2 * processes.is_main()]
    assert (processes.failing_process(True), processes.failing_process(False)) == (None, 0)
    processes.check_same({"the config": "any"})
