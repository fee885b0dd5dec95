"""Names of paths in object stores; `tests/test_object_storage.py` has the stores."""

from pathlib import Path

import pytest

from t2t_jax.commands.entry import entry_command
from t2t_jax.errors import UserError
from t2t_jax.system.bucket import BucketPath, as_path

RELEASED = Path(__file__).parents[1] / "goldens/runs/0.2.0/run"


MEANT = {"gcs": "gs", "s3a": "s3", "S3": "s3"}


@pytest.mark.parametrize("scheme", [*MEANT, "az", "https", "file", "HF"])
@pytest.mark.parametrize(
    "command",
    [
        f"publish {RELEASED} {{}} --licence mit",
        f"export {RELEASED} {{}} --to safetensors",
        "train {} --config quickstart",
        "train runs/x --config quickstart --data.cache-dir {}",
        "launch kubernetes --image i -- train {} --config quickstart",
        "translate {}",
    ],
)
def test_an_unknown_store_is_refused_and_the_known_ones_are_listed(
    command, scheme, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"s3://BUCKET/NAME, gs://BUCKET/NAME") as refusal:
        entry_command(command.format(f"{scheme}://bucket/x").split()).run()
    assert f"{scheme}://bucket/x is in no known store" in str(refusal.value)
    hint = f"did you mean {MEANT.get(scheme)}://bucket/x?"
    assert str(refusal.value).endswith(hint) == (scheme in MEANT)
    assert not list(tmp_path.iterdir())


def test_a_path_that_lost_a_slash_is_refused_too_and_other_colons_are_no_stores():
    with pytest.raises(UserError, match=r"gcs://bucket/x is in no known store.*gs://bucket/x\?"):
        as_path(Path("gcs://bucket/x"))
    assert isinstance(as_path(Path("gs://bucket/x")), BucketPath)
    for name in ("notes:/x", "12:30/x", "/runs/a://b", "C:x"):
        assert as_path(Path(name)) == Path(name)
