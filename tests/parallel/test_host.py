"""Freed memory stays with the process, and what no cycle keeps is freed without a search."""

import gc
import subprocess
import sys

import pytest

from t2t_jax.parallel.host import collect_garbage_seldom

_PROGRAM = """
import resource
import numpy as np
from t2t_jax.parallel.host import keep_freed_memory

def faults_of_a_block_used_again():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    np.ones(2**24, np.uint8)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

assert keep_freed_memory()
faults_of_a_block_used_again()
print(faults_of_a_block_used_again())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="a setting of glibc")
def test_a_block_that_was_freed_is_used_again_without_new_pages():
    done = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, check=True)
    # 16 MiB are 4,096 pages, each of which a fresh block would fault in.
    assert int(done.stdout) < 100


def test_a_million_objects_are_made_with_next_to_no_search_for_garbage():
    searches = []
    before = gc.get_threshold()
    gc.callbacks.append(lambda phase, info: searches.append(phase))
    try:
        collect_garbage_seldom()
        made = [[number] for number in range(1_000_000)]
    finally:
        gc.callbacks.pop()
        gc.set_threshold(*before)
    assert len(made) == 1_000_000
    assert 0 < searches.count("start") <= 10
