"""The arguments that JAX needs under Open MPI 5; it reads the variables of Open MPI 4 only."""

import os
import re
import socket
import zlib

from t2t_jax.errors import UserError

_FIRST_PORT, _NUM_PORTS = 61440, 4096  # JAX takes the ports of jobs from this range


def is_open_mpi_5() -> bool:
    """Return whether `mpirun` of Open MPI 5 started this process, as one of several."""
    names = os.environ.keys()
    return {"OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"} <= names and not any(
        name.startswith("OMPI_MCA_orte_") for name in names
    )


def open_mpi_arguments(coordinator: str | None) -> tuple[str, int, int]:
    """Return the coordinator, the number of processes and the index of this process.

    Without a coordinator, process 0 has to run on the host of `mpirun`, whose name is in the name
    of the job, such as `prterun-node1-4711@1`.

    Raises:
      UserError: no coordinator is given, and process 0 runs on another host.
    """
    size, rank = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("SIZE", "RANK"))
    if coordinator is None:
        job = os.environ.get("PMIX_NAMESPACE", "")
        if os.environ.get("OMPI_COMM_WORLD_LOCAL_SIZE") == str(size):
            host = "127.0.0.1"
        else:
            launcher = re.fullmatch(r"\w+-(.+)-\d+@\d+", job)
            host = launcher[1] if launcher else ""
        is_elsewhere = host.partition(".")[0] != socket.gethostname().partition(".")[0]
        if not job or not host or (rank == 0 and host != "127.0.0.1" and is_elsewhere):
            raise UserError(
                "Open MPI does not say where process 0 is; add --coordinator HOST:PORT with its "
                "host and a free port"
            )
        coordinator = f"{host}:{_FIRST_PORT + zlib.crc32(job.encode()) % _NUM_PORTS}"
    return coordinator, size, rank
