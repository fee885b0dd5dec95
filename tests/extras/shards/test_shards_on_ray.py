"""Shards on a cluster of Ray: the same bytes, also after a worker was killed."""

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from t2t_jax import Config, UserError
from t2t_jax.data.corpus import open_corpus
from t2t_jax.data.tokenized import prepare_vocabulary
from t2t_jax.extras.shards.pieces import on_ray
from t2t_jax.tasks import task_of
from tests.extras.shards.test_shards import FIELDS, write_shards

pytestmark = [
    pytest.mark.thorough,
    # Ray starts its processes by fork; other tests of this process may have used JAX.
    pytest.mark.filterwarnings("ignore:os.fork:RuntimeWarning"),
]


def test_a_worker_that_is_killed_changes_no_byte(tmp_path: Path, monkeypatch: Any) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not for every Python")
    monkeypatch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[2]))
    place = write_shards(tmp_path / "shards", "jsonl")
    killed = tmp_path / "killed"

    def engine(make: Any, jobs: Any) -> Any:
        def once_killed(job: Any) -> Any:
            made = make(job)
            if job.number == 1 and not killed.exists():
                killed.touch()
                os.kill(os.getpid(), signal.SIGKILL)
            return made

        return on_ray("")(once_killed, jobs)

    def failing(job: int) -> int:
        if job:
            raise UserError(f"shard {job} is damaged")
        return job

    made = []
    try:
        for where in ("here", "there"):
            fields = {"corpus": place, "fields": FIELDS, "vocab_size": 100, "max_length": 40}
            fields["cache_dir"] = str(tmp_path / where)
            config = Config().replace({f"data.{name}": value for name, value in fields.items()})
            corpus = open_corpus(config.data)
            vocabulary = prepare_vocabulary(config.data, corpus)
            text = task_of(corpus.name).train_text(config, vocabulary)
            how = {"engine": engine} if where == "there" else {}
            folder = corpus.parts["train"].pieces(config.data, vocabulary, text, **how).folder
            made.append({path.name: path.read_bytes() for path in folder.iterdir()})
        assert killed.exists()
        assert made[0] == made[1]
        results = on_ray("")(failing, [0, 3])
        assert next(results) == 0
        with pytest.raises(UserError, match=r"^shard 3 is damaged$"):
            next(results)
    finally:
        ray.shutdown()


@pytest.mark.parametrize(
    "name", ["WorkerCrashedError", "OutOfMemoryError", "ObjectLostError", "TaskUnschedulableError"]
)
def test_every_error_of_ray_itself_is_one_line(monkeypatch: Any, name: str) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not for every Python")
    error = getattr(ray.exceptions, name)
    arguments = ("00", None, "") if name == "ObjectLostError" else ("first line\n" + 300 * "x",)

    def lost(job: Any) -> Any:
        raise error() if name == "WorkerCrashedError" else error(*arguments)

    monkeypatch.setattr(ray, "init", lambda address, **options: None)
    monkeypatch.setattr(ray, "get", lost)
    monkeypatch.setattr(ray, "remote", lambda **options: lambda make: SimpleNamespace(remote=make))
    with pytest.raises(UserError, match=f"a shard was lost \\({name}: ") as refusal:
        list(on_ray("")(str, [0]))
    assert "\n" not in str(refusal.value)
    assert len(str(refusal.value)) < 450
