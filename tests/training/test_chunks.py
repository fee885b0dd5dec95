"""The files of a checkpoint that a process fetches from a bucket."""

import json
from types import SimpleNamespace

import numpy as np
import orbax.checkpoint as ocp
import pytest

from t2t_jax.system.bucket import BucketPath, as_path
from t2t_jax.training.chunks import files_to_read

PLACE = as_path("s3://bucket/run/checkpoints/7")
OTHERS = ("_CHECKPOINT_METADATA", "params/_METADATA", "params/a.b/.zarray", "progress/step/0")

CASES = {
    "rows": ((8, 6), (2, 6), [np.s_[0:4, :]]),
    "a part of both axes": ((8, 6), (4, 3), [np.s_[4:8, 3:6]]),
    "two devices": ((8, 6), (2, 2), [np.s_[0:2, 0:2], np.s_[6:8, :]]),
    "other borders than those of the chunks": ((9,), (4,), [(np.s_[3:5],)]),
    "everything": ((8, 6), (4, 3), [np.s_[:, :]]),
    "a number": ((), (), [()]),
}


@pytest.mark.parametrize(("shape", "chunks", "parts"), CASES.values(), ids=CASES.keys())
def test_a_process_fetches_the_chunks_that_its_part_is_in(
    monkeypatch, tmp_path, shape, chunks, parts
):
    # Each element holds the name of the file that has it.
    holder = np.empty(shape, object)
    for place in np.ndindex(shape):
        holder[place] = ".".join(str(i // size) for i, size in zip(place, chunks, strict=True))
    if not shape:
        holder[()] = "0"
    chunk_names = {f"params/a.b/{name}" for name in np.unique(holder.astype(str))}
    objects = [PLACE / name for name in (*OTHERS, *chunk_names)]
    monkeypatch.setattr(BucketPath, "objects", lambda path: objects)
    (tmp_path / "params/a.b").mkdir(parents=True)
    (tmp_path / "params/a.b/.zarray").write_text(json.dumps({"chunks": chunks}))

    first, others = files_to_read(PLACE, {"params"})
    sharding = SimpleNamespace(addressable_devices_indices_map=lambda shape: dict(enumerate(parts)))
    leaf = SimpleNamespace(shape=shape, sharding=sharding)
    asked = ocp.args.Composite(params=ocp.args.StandardRestore({"a": {"b": leaf}}))
    assert first == [PLACE / name for name in OTHERS[:3]]
    expected = {str(name) for part in parts for name in np.ravel(holder[part])}
    assert {path.name for path in others(tmp_path, asked)} == expected


def test_all_of_an_array_is_fetched_where_nothing_is_known_of_its_chunks(monkeypatch, tmp_path):
    objects = [PLACE / "params/a/0.0", PLACE / "params/a/0.1", PLACE / "params/manifest.ocdbt"]
    monkeypatch.setattr(BucketPath, "objects", lambda path: objects)
    first, others = files_to_read(PLACE, {"params"})
    assert first == objects[2:]
    asked = ocp.args.Composite(params=ocp.args.StandardRestore(None))
    assert [*others(tmp_path, asked)] == objects[:2]
