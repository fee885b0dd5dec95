"""Turns of processes at the cache: who learns the vocabulary and tokenizes, and who only reads."""

import json

import pytest

from t2t_jax.config import DataConfig
from t2t_jax.run import turns
from tests.parallel.test_processes import finish, free_port, start

# Each process reports, for every cache, how many vocabularies it learned and how many corpora it
# tokenized, or its error.
_PROGRAM = """
import json, sys, time
from pathlib import Path
import t2t_jax.data.tokenized as tokenized
import t2t_jax.parallel.processes as processes
import t2t_jax.run.turns as turns
from t2t_jax.config.file import load_config
from t2t_jax.errors import UserError
from t2t_jax.run.preparing import make_plan

process, coordinator, file, root = int(sys.argv[1]), *sys.argv[2:]
work = []
def counted(function):
    def wrapper(*args, **kwargs):
        work.append(function.__name__)
        time.sleep(0.3)
        return function(*args, **kwargs)
    return wrapper
turns._SILENT_SECONDS = 0.2
tokenized.train_vocabulary = counted(tokenized.train_vocabulary)
tokenized.tokenize = counted(tokenized.tokenize)
processes.join(coordinator, 2, process)
config = load_config(file)

def prepare(host, cache, **changes):
    processes.hosts.cache_clear()
    processes.host_name = lambda: host
    work.clear()
    try:
        plan = make_plan(config.replace({"data.cache_dir": cache, **changes}), Path(root, "run"))
    except UserError as error:
        return str(error)
    return work.count("train_vocabulary"), work.count("tokenize"), plan.vocabulary.fingerprint

reports = {
    "one host": prepare("a", f"{root}/one"),
    "again": prepare("a", f"{root}/one"),
    "two hosts, one cache": prepare(f"host{process}", f"{root}/two"),
    "two hosts, two caches": prepare(f"host{process}", f"{root}/own{process}"),
    "refused": prepare("a", f"{root}/one", **{"data.corpus": "text:/missing"}),
}
print(json.dumps(reports))
"""


@pytest.fixture(scope="module")
def ended(tiny_run, tmp_path_factory):
    """The output and the errors of two processes that prepare the same run."""
    place, root = f"127.0.0.1:{free_port()}", tmp_path_factory.mktemp("turns")
    file = tiny_run.folder / "tiny.py"
    return finish(*[start(_PROGRAM, number, place, file, root) for number in (0, 1)])


@pytest.fixture
def reports(ended):
    """The reports of the two processes."""
    return [json.loads(output.splitlines()[-1]) for output, _ in ended]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("case", "first", "second"),
    [
        ("one host", [1, 2], [0, 0]),  # train and dev are tokenized
        ("again", [0, 0], [0, 0]),
        ("two hosts, one cache", [1, 2], [0, 0]),
        ("two hosts, two caches", [1, 2], [1, 2]),
    ],
)
def test_one_process_of_each_cache_learns_and_tokenizes(reports, case, first, second):
    (*of_0, vocabulary), (*of_1, other) = (report[case] for report in reports)
    assert (of_0, of_1) == (first, second)
    assert vocabulary == other


@pytest.mark.thorough
def test_a_process_that_fails_does_not_keep_the_others_waiting(reports):
    assert all("/missing" in report["refused"] for report in reports)


@pytest.mark.thorough
def test_a_process_that_waits_names_the_one_that_prepares(ended):
    assert "process 1 waits for process 0 on a, which prepares the vocabulary" in ended[1][1]


@pytest.mark.parametrize(
    ("cache", "is_shared", "expected"),
    [
        ("/scratch", False, [0, 2, 0, 2]),  # one process of each host begins
        ("/home", True, [0, 2, 2, 2]),
        ("s3://bucket/cache", False, [0, 2, 1, 2]),  # one process of each host downloads
    ],
)
def test_the_turns_of_two_hosts_with_two_processes_each(monkeypatch, cache, is_shared, expected):
    found = []
    monkeypatch.setattr(turns, "hosts", lambda: ("a", "a", "b", "b"))
    for number in range(4):
        monkeypatch.setattr(turns.jax, "process_index", lambda number=number: number)
        sees = is_shared or (number < 2 and not cache.startswith("s3"))
        monkeypatch.setattr(turns, "_sees_file_of_main", lambda *_, sees=sees: sees)
        found.append(turns._turn(DataConfig(cache_dir=cache), "barrier"))
    assert found == expected
