"""A Slurm cluster of two nodes on this machine, for the tests of this folder."""

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

PROGRAMS = "slurmctld", "slurmd", "sbatch", "munged"
NODES = "n1", "n2"
_TASK = [b"-m", b"t2t_jax"]
_SETTINGS = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ports[0]}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
JobCompType=jobcomp/none
SchedulerParameters=sched_interval=2,sched_min_interval=0
ReturnToService=2
SlurmdTimeout=10
NodeName=n1 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[1]} CPUs=2
NodeName=n2 NodeHostname={host} NodeAddr=127.0.0.1 Port={ports[2]} CPUs=2
PartitionName=main Nodes=n1,n2 Default=YES MaxTime=INFINITE State=UP
"""


class Slurm:
    """A controller and the daemons of two nodes, which are stopped at the end, with their jobs."""

    def __init__(self, folder: Path) -> None:
        """Write the settings."""
        self.folder = folder
        sockets = [socket.socket() for _ in range(3)]
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        ports = [one.getsockname()[1] for one in sockets]
        for one in sockets:
            one.close()
        (folder / "state").mkdir()
        (folder / "slurm.conf").write_text(
            _SETTINGS.format(host=socket.gethostname(), folder=folder, ports=ports)
        )
        (folder / "key").write_bytes(os.urandom(128))
        (folder / "key").chmod(0o600)
        self._daemons: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Start all daemons, and wait until both nodes are up."""
        names = ("key-file=key", "socket=munge.socket", "pid-file=munge.pid", "log-file=munge.log")
        files = [f"--{name}={self.folder}/{file}" for name, file in (n.split("=") for n in names)]
        self._start("munged", "munged", "--foreground", f"--seed-file={self.folder}/seed", *files)
        wait_for(lambda: (self.folder / "munge.socket").exists())
        self._start("slurmctld", "slurmctld", "-D", "-c")
        self.start_nodes()

    def start_nodes(self) -> None:
        """Start the daemons of nodes that have none, and wait until both nodes are idle."""
        for node in NODES:
            if node not in self._daemons:
                self._start(node, "slurmd", "-D", "-N", node)
        wait_for(self.is_idle)

    def _start(self, name: str, *command: str) -> None:
        with (self.folder / f"{name}.out").open("ab") as log:
            self._daemons[name] = subprocess.Popen(command, stdout=log, stderr=log)

    @contextmanager
    def paused(self) -> Iterator[list[int]]:
        """Stop the tasks of all jobs within a block, so that none ends before the test is ready."""
        found = [number for node in NODES for number in self._processes_of(node)]
        tasks = [
            n for n in found if Path(f"/proc/{n}/cmdline").read_bytes().split(b"\0")[1:3] == _TASK
        ]
        assert tasks
        for task in tasks:
            os.kill(task, signal.SIGSTOP)
        try:
            yield tasks
        finally:
            for task in tasks:
                with suppress(ProcessLookupError):
                    os.kill(task, signal.SIGCONT)

    def lose(self, node: str) -> None:
        """Kill a node: its daemon, what that has started, and the tasks of jobs on it."""
        for number in self._processes_of(node):
            with suppress(ProcessLookupError):
                os.kill(number, signal.SIGKILL)
        self._daemons.pop(node).wait()

    def _processes_of(self, node: str) -> list[int]:
        """Return the daemons and steps of a node, which have its log open, and all they started."""
        log, found, parents = self.folder / f"slurmd-{node}.log", set(), {}
        for process in Path("/proc").glob("[0-9]*"):
            with suppress(OSError, IndexError):
                status = (process / "stat").read_text().rpartition(")")[2].split()
                parents[int(process.name)] = int(status[1])
                if any(file.resolve() == log for file in (process / "fd").iterdir()):
                    found.add(int(process.name))
        while started := {one for one, parent in parents.items() if parent in found} - found:
            found |= started
        return list(found)

    def is_idle(self) -> bool:
        """Return whether both nodes wait for a job."""
        return slurm("sinfo", "--noheader", "--Node", "--format=%N %T").split() == [
            *(NODES[0], "idle", NODES[1], "idle"),
        ]

    def stop(self) -> None:
        """End the jobs and all processes of the cluster."""
        with suppress(subprocess.SubprocessError):
            slurm("scancel", "--full", "--signal=KILL", f"--user={os.getuid()}")
        for node in NODES:
            if node in self._daemons:
                self.lose(node)
        for daemon in self._daemons.values():
            daemon.terminate()
        for daemon in self._daemons.values():
            daemon.wait(30)


def slurm(*command: str) -> str:
    """Run a program of Slurm, and return what it printed."""
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout


def wait_for(holds: Callable[[], object], seconds: float = 120) -> None:
    """Wait until something holds; an error of Slurm, which is not up yet, does not count."""
    latest = time.monotonic() + seconds
    while True:
        with suppress(subprocess.CalledProcessError):
            if holds():
                return
        assert time.monotonic() < latest, "what the test waits for does not come"
        time.sleep(0.1)


@pytest.fixture
def cluster(started: Slurm) -> Iterator[Slurm]:
    """A cluster with two idle nodes, whose jobs end with the test."""
    started.start_nodes()
    yield started
    slurm("scancel", "--full", f"--user={os.getuid()}")


@pytest.fixture(scope="session")
def started() -> Iterator[Slurm]:
    """A cluster for all tests."""
    missing = [name for name in PROGRAMS if shutil.which(name) is None]
    if missing:
        pytest.skip(f"no {missing[0]}: apt-get install slurm-wlm munge")
    if os.getuid() != 0:
        pytest.skip("the daemons of Slurm and the names of its nodes need root")
    folder = Path(tempfile.mkdtemp(prefix="slurm-"))
    hosts = Path("/etc/hosts")
    names = hosts.read_text()
    settings = os.environ.get("SLURM_CONF")
    folder.chmod(0o711)  # munged wants its clients to reach the socket
    made = Slurm(folder)
    try:
        hosts.write_text(f"{names.rstrip()}\n127.0.0.1 {' '.join(NODES)}\n")
        os.environ["SLURM_CONF"] = str(folder / "slurm.conf")
        made.start()
        yield made
    finally:
        made.stop()
        hosts.write_text(names)
        os.environ.pop("SLURM_CONF")
        if settings is not None:
            os.environ["SLURM_CONF"] = settings
        shutil.rmtree(folder, ignore_errors=True)
