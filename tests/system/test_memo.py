"""A memory of the latest results: each is made once, also for several threads."""

import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor

import pytest

from t2t_jax.system.memo import Memo


def test_the_latest_results_are_kept():
    made: list[int] = []
    memo = Memo(lambda x: made.append(x) or -x, 2)
    assert [memo(x) for x in (1, 2, 1, 3, 1, 2, 3)] == [-1, -2, -1, -3, -1, -2, -3]
    assert made == [1, 2, 3, 2, 3]
    assert len(memo._cache) == 2


def test_threads_wait_for_one_that_makes_a_result_and_not_for_others():
    made, go_on, begun = Counter[int](), threading.Event(), threading.Event()

    def slow(x):
        made[x] += 1
        if x == 0:
            begun.set()
            assert go_on.wait(60)
        return -x

    memo = Memo(slow, 4)
    with ThreadPoolExecutor(4) as pool:
        waiting = [pool.submit(memo, 0) for _ in range(3)]
        assert begun.wait(60)
        assert memo(1) == -1
        go_on.set()
        assert [one.result() for one in waiting] == [0, 0, 0]
    assert made == {0: 1, 1: 1}


def test_an_error_is_raised_and_not_kept():
    failures = iter([OSError("away"), None])

    def make(x):
        if error := next(failures):
            raise error
        return x

    memo = Memo(make, 2)
    with pytest.raises(OSError, match="away"):
        memo(5)
    assert memo(5) == 5
