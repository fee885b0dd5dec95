"""Archives of runs: bounded memory and disk whatever they declare, and copies that stay whole."""

import shutil
import subprocess
import tarfile
import tracemalloc
import zipfile
from collections import namedtuple

import pytest

from t2t_jax import UserError
from t2t_jax.system.opening import resolve_run

_LONG = 20_000_000


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def run(tmp_path):
    """A directory with the files of a run, one of which is sparse."""
    run = tmp_path / "r"
    run.mkdir()
    (run / "config.json").write_text("{}")
    with (run / "model.safetensors").open("wb") as file:
        file.truncate(1 << 20)
    return run


def _packed(run, *options):
    archive = run.with_name("a.tar.gz")
    subprocess.run(["tar", "-czf", archive, *options, "-C", run.parent, run.name], check=True)
    return archive


@pytest.mark.parametrize("form", [tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
@pytest.mark.parametrize("field", ["name", "linkname"])
def test_a_long_name_is_refused_before_it_is_in_memory(form, field, tmp_path):
    info = tarfile.TarInfo("r/config.json")
    setattr(info, field, "a" * _LONG)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", format=form) as archive:
        archive.addfile(info)
    tracemalloc.start()
    with pytest.raises(UserError, match=r"a name or header of a member has 20,000,0.* bytes"):
        resolve_run(tmp_path / "a.tar.gz")
    assert tracemalloc.get_traced_memory()[1] < _LONG / 10
    tracemalloc.stop()


@pytest.mark.parametrize(
    "options",
    [
        ("--format=gnu",),
        *(("--format=posix", f"--sparse-version={version}") for version in ("0.0", "0.1", "1.0")),
    ],
)
def test_sparse_files_are_refused(options, run):
    archive = _packed(run, "--sparse", *options)
    with pytest.raises(UserError, match=r"is a sparse file; pack it without --sparse"):
        resolve_run(archive)
    assert not (run.parent / "cache").exists()


def test_an_archive_that_is_larger_than_the_disk_is_refused_before_it_is_unpacked(run, monkeypatch):
    archive = _packed(run)
    usage = namedtuple("usage", "free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(1 << 19))
    with pytest.raises(UserError, match=r"unpacks to 1 MiB, and .* has 0 MiB free; make room"):
        resolve_run(archive)
    assert not (run.parent / "cache").exists()


def test_many_long_names_are_refused(run, monkeypatch):
    monkeypatch.setattr("t2t_jax.system.opening._MOST_NAMES", 30)  # r, and its two files
    with pytest.raises(UserError, match="is larger than any run"):
        resolve_run(_packed(run))


@pytest.mark.parametrize("kind", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_a_zip_is_compressed_by_deflate(kind, tmp_path):
    """The other kinds unpack to any size at once."""
    with zipfile.ZipFile(tmp_path / "a.zip", "w", kind) as archive:
        archive.writestr("config.json", "{}")
    with pytest.raises(UserError, match=r"config.json' is not compressed by deflate; use zip -r"):
        resolve_run(tmp_path / "a.zip")


@pytest.mark.parametrize(
    "damage",
    [
        lambda copy: (copy / "config.json").write_text("[]"),
        lambda copy: (copy / "model.safetensors").unlink(),
        lambda copy: (copy / ".copy.sha256").unlink(),
        lambda copy: (copy / "log.jsonl").write_text("x"),
    ],
)
def test_a_damaged_copy_is_unpacked_again(damage, run):
    archive = _packed(run)
    copy = resolve_run(archive)
    unpacked = (copy / "config.json").stat().st_ino
    assert (resolve_run(archive) / "config.json").stat().st_ino == unpacked
    damage(copy)
    assert resolve_run(archive) == copy
    assert sorted(path.name for path in copy.iterdir()) == [
        *(".copy.sha256", "config.json", "model.safetensors")
    ]
    assert all((copy / path.name).read_bytes() == path.read_bytes() for path in run.iterdir())
    assert [path.name for path in copy.parent.iterdir()] == [copy.name]
