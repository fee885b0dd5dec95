"""The folders of a user: as the XDG Base Directory Specification has them."""

from pathlib import Path

import pytest

from t2t_jax.system.folders import user_folder


@pytest.mark.parametrize(
    ("kind", "given", "expected"),
    [
        ("cache", None, "/home/jane/.cache/t2t_jax"),
        ("state", None, "/home/jane/.local/state/t2t_jax"),
        ("cache", "", "/home/jane/.cache/t2t_jax"),
        ("cache", "/var/cache", "/var/cache/t2t_jax"),
        ("state", "/var/lib", "/var/lib/t2t_jax"),
    ],
)
def test_a_folder_is_where_the_environment_says(kind, given, expected, monkeypatch):
    monkeypatch.setenv("HOME", "/home/jane")
    for name in ("CACHE", "STATE"):
        monkeypatch.delenv(f"XDG_{name}_HOME", raising=False)
    if given is not None:
        monkeypatch.setenv(f"XDG_{kind.upper()}_HOME", given)
    assert user_folder(kind) == Path(expected)
