"""The versions and the hash of the code that compute a run."""

import re

import jax

from t2t_jax.run.provenance import code_hash, versions


def test_versions_name_the_packages_and_the_code():
    found = versions()
    assert found["jax"] == jax.__version__
    assert found["the code of t2t-jax"] == code_hash()
    assert {"python", "jaxlib", "flax", "optax", "orbax-checkpoint", "numpy"} <= found.keys()


def test_the_hash_of_the_code_changes_with_a_file_of_it(tmp_path, monkeypatch):
    assert re.fullmatch("[0-9a-f]{12}", code_hash())
    (tmp_path / "run").mkdir()
    monkeypatch.setattr("t2t_jax.run.provenance.__file__", str(tmp_path / "run" / "provenance.py"))
    (tmp_path / "a.py").write_text("a = 1\n")
    before = code_hash()
    assert code_hash() == before
    (tmp_path / "a.py").write_text("a = 2\n")
    assert code_hash() != before
