"""Run the tokenisation of shards on this machine, or on a cluster of Ray.

On a cluster, each shard is a task. If a worker or its machine is lost, Ray gives the shard to
another one, with the same result.
"""

import logging
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeAlias

from t2t_jax.errors import UserError, in_one_line, needs_extra

Engine: TypeAlias = Callable[[Callable[[Any], Any], Iterable[Any]], Iterator[Any]]
"""A function that applies another one to each of some jobs, and yields the results in order."""

_RETRIES = 10  # of a shard whose workers are lost


def on_ray(address: str) -> Engine:
    """Return an engine that runs the jobs on a cluster of Ray, whose machines share the files.

    Args:
      address: "" is the environment's address, or else a new cluster on this machine.

    Raises:
      UserError: Ray is not installed, or there is no such cluster.
    """
    with needs_extra("ray", "--ray"):
        import ray

    def engine(make: Callable[[Any], Any], jobs: Iterable[Any]) -> Iterator[Any]:
        try:
            quiet = {"log_to_driver": False, "logging_level": logging.WARNING}
            ray.init(address or None, ignore_reinit_error=True, **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise UserError(
                f"--ray {address}: no cluster of Ray can be reached there ({error}); start one by "
                "ray start --head"
            ) from error
        # A partial function would be refused.
        there = ray.remote(num_cpus=1, max_retries=_RETRIES)(lambda job: make(job))
        waiting = deque(there.remote(job) for job in jobs)
        while waiting:
            try:
                yield ray.get(waiting.popleft())  # after which Ray can forget it
            except ray.exceptions.RayTaskError as error:
                raise error.cause from error
            except ray.exceptions.RayError as error:  # such as a worker out of memory, again
                raise UserError(
                    f"--ray {address}: a shard was lost ({type(error).__name__}: "
                    f"{in_one_line(error)[:200]}); look at the machines of the cluster and their "
                    "memory: the same command keeps the finished shards"
                ) from error

    return engine
