"""Turns at the corpus cache: one process writes the missing entries, and the others read them.

Processes announce their turns on the message board, because collectives may time out and a large
corpus takes an hour. If a process dies, `parallel.liveness` ends the others.
"""

import secrets
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

import jax

from t2t_jax.config import DataConfig
from t2t_jax.data.cache import cache_root
from t2t_jax.errors import UserError
from t2t_jax.parallel.message_board import leave, texts_under
from t2t_jax.parallel.processes import agree, broadcast_from_main, hosts, is_main
from t2t_jax.system.bucket import BucketPath, as_path

_FIRST, _SECOND, _LAST, _DONE = range(4)
_SILENT_SECONDS = 5.0


@contextmanager
def in_turn(config: DataConfig) -> Iterator[None]:
    """Enter the context first in one process of each host, then in the other processes.

    If all hosts share the cache, only process 0 goes first. If a process fails, the next turn
    starts, so that the other processes raise their own errors.
    """
    if jax.process_count() == 1:
        yield
        return
    barrier = f"cache-{broadcast_from_main(secrets.randbits(30)):x}"
    _wait(barrier, _turn(config, barrier), config.corpus)
    try:
        yield
    finally:
        _enter(barrier, _DONE)
    _wait(barrier, _DONE, config.corpus)


def _turn(config: DataConfig, barrier: str) -> int:
    """Return the turn in which this process enters the corpus cache.

    `_FIRST` writes missing entries; `_SECOND` and `_LAST` follow. All processes must call this
    together, with the same `barrier`.
    """
    is_first_on_host = hosts().index(hosts()[jax.process_index()]) == jax.process_index()
    is_shared = _sees_file_of_main(config, f".{barrier}")
    if is_main():
        return _FIRST
    if isinstance(as_path(config.cache_dir), BucketPath):  # each host keeps a copy
        return _SECOND if is_first_on_host else _LAST
    return _FIRST if is_first_on_host and not is_shared else _LAST


def _sees_file_of_main(config: DataConfig, name: str) -> bool:
    is_visible = False
    # `in_turn` raises the same error later.
    with suppress(OSError, UserError):
        if is_main():
            (cache_root(config) / name).touch()
    agree(0)
    with suppress(OSError, UserError):
        is_visible = (cache_root(config) / name).exists()
    agree(0)
    with suppress(OSError, UserError):
        if is_main():
            (cache_root(config) / name).unlink()
    return is_visible


def _enter(barrier: str, turn: int) -> None:
    leave(f"{barrier}/{jax.process_index()}", str(turn))


def _wait(barrier: str, turn: int, corpus: str) -> None:
    """Announce `turn` under the key `barrier`, and wait until all processes reach it.

    After a long wait, one process reports which one prepares `corpus`.
    """
    _enter(barrier, turn)
    start_time, is_announced = time.monotonic(), False
    while True:
        turns = {index: int(text) for index, text in texts_under(barrier).items()}
        earlier = [index for index in sorted(turns) if turns[index] < turn]
        if len(turns) == jax.process_count() and not earlier:
            return
        announcer = min((index for index in turns if turns[index] >= turn), default=-1)
        if earlier and not is_announced and time.monotonic() > start_time + _SILENT_SECONDS:
            is_announced = True
            if announcer == jax.process_index() and sys.stderr is not None:
                message = (
                    f"process {announcer} waits for process {earlier[0]} on {hosts()[earlier[0]]}, "
                    f"which prepares the vocabulary and the tokens of {corpus}"
                )
                print(message, file=sys.stderr, flush=True)
        time.sleep(1.0 if is_announced else 0.1)
