"""The small form of a run, and archives of runs: they open as the run does, or say why not."""

import io
import json
import shutil
import tarfile
import zipfile
from unittest.mock import Mock

import jax
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

import t2t_jax
from t2t_jax import MeshConfig
from t2t_jax.__main__ import main
from t2t_jax.data.corpus import Corpus
from t2t_jax.data.vocabularies.learning import train_vocabulary
from t2t_jax.extras.interchange.run import write_run
from t2t_jax.modules.models import make_model
from t2t_jax.parallel.mesh import make_mesh
from t2t_jax.run.start import initial_run, initial_state
from t2t_jax.system.fetched_path import FetchedPath
from t2t_jax.system.hub import RUN_FILES
from t2t_jax.training.averaging import saved_steps
from t2t_jax.training.checkpoint import Checkpoints
from t2t_jax.workdir import (
    CARD,
    PARAMETERS,
    RECORDS,
    VOCABULARY,
    become_ordinary,
    check_workdir,
    claim,
    read_config,
    read_scores,
    record_scores,
)
from tests.extras.interchange.models import portable
from tests.programs import run_program
from tests.refusals import refused
from tests.run.test_loading import CONFIG, LINES, make_run
from tests.selection import thorough_after

_SCORE = {"corpus": "text:x", "split": "dev", "bleu": 12.5}


@pytest.fixture(scope="module")
def vocabulary():
    return train_vocabulary([(LINES, LINES)], 50)


@pytest.fixture(scope="module")
def run(tmp_path_factory, vocabulary):
    """A run with three checkpoints, of which loading averages two."""
    workdir = make_run(tmp_path_factory.mktemp("run") / "run", vocabulary, (1, 2, 6), {})
    (workdir / "corpus.sha256").write_text("f00d\n")
    record_scores(workdir, _SCORE)
    return workdir


@pytest.fixture(scope="module")
def small(run):
    out = run.with_name("small")
    assert main(["export", str(run), str(out), "--to", "run"]) == 0
    return out


@pytest.fixture(autouse=True)
def own_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def _alike(found, expected):
    jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
    assert found.config == expected.config
    assert (found.steps, found.ema_decays) == (expected.steps, expected.ema_decays)
    assert found.nbest(LINES, 2) == expected.nbest(LINES, 2)


def test_the_small_form_is_what_loading_needs_and_translates_bit_for_bit_alike(run, small):
    assert {path.name for path in small.iterdir()} <= set(RUN_FILES)
    expected = t2t_jax.load(run)
    found = t2t_jax.load(small)
    assert found.steps == (2, 6)
    _alike(found, expected)
    assert t2t_jax.load(small, average=2, step=6).steps == (2, 6)
    [score] = read_scores(small)
    assert score == _SCORE
    checked = run_program("sha256sum", "--check", "--strict", "SHA256SUMS", cwd=small)
    assert checked.returncode == 0
    assert len(checked.stdout.splitlines()) == len(list(small.iterdir())) - 1


@pytest.mark.thorough
def test_the_neutral_form_opens_as_a_run_too_and_an_import_keeps_its_origin(tmp_path):
    write_run(portable({}), tmp_path / "run", {"format": "a test"})
    for form in ("safetensors", "run"):
        out = tmp_path / f"as {form}"
        assert main(["export", str(tmp_path / "run"), str(out), "--to", form]) == 0
        _alike(t2t_jax.load(out), t2t_jax.load(tmp_path / "run"))
    assert json.loads((tmp_path / "as run/imported.json").read_text()) == {"format": "a test"}
    assert not (tmp_path / "as safetensors/imported.json").exists()


@pytest.mark.thorough
def test_a_moving_average_stays_one(tmp_path, vocabulary):
    kept = make_run(tmp_path / "run", vocabulary, (1, 2), {"training.ema_decay": 0.75})
    for name, flags in (("ema", []), ("mean", ["--average", "2"])):
        out = tmp_path / name
        assert main(["export", str(kept), str(out), "--to", "run", *flags]) == 0
        expected = t2t_jax.load(kept, average=2 if flags else None)
        found = t2t_jax.load(out)
        jax.tree.map(np.testing.assert_array_equal, found.params, expected.params)
        assert (found.steps, found.ema_decays) == (expected.steps, expected.ema_decays)


@pytest.mark.parametrize("choice", [{"average": 3}, {"step": 2}, {"step": "best"}])
def test_other_checkpoints_than_those_of_the_export_are_refused(small, choice):
    with refused(match=r"average of the steps \[2, 6\].*asks for others; leave"):
        t2t_jax.load(small, **choice)


@pytest.mark.thorough
def test_training_starts_from_it_but_does_not_go_on_with_it(small, tmp_path, vocabulary):
    with refused(match=r"was saved or exported, and no training to go on with.*init-from"):
        check_workdir(CONFIG, small)
    start = {"training.init_from": str(small), "data.vocab_size": len(vocabulary)}
    config = CONFIG.replace(start)
    initial = initial_run(config)
    with refused("has no checkpoint of step 2; it has [6]"):
        initial_run(config.replace({"training.init_step": 2}))
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    nothing_saved = Mock(spec=Checkpoints, **{"restore.return_value": None})
    model = make_model(config, len(vocabulary), mesh)
    plan = Mock(config=config, model=model, mesh=mesh, load_initial_run=lambda: initial)
    state = initial_state(plan, nothing_saved)
    jax.tree.map(np.testing.assert_array_equal, state.params, t2t_jax.load(small).params)


@pytest.mark.thorough
def test_what_was_published_counts_until_its_training_goes_on(small, tmp_path, vocabulary):
    """A newer checkpoint of the state, as that of a training that was stopped, changes nothing."""
    copied = make_run(tmp_path / "run", vocabulary, (6, 7), {})
    shutil.copy(small / "model.safetensors", copied)
    (copied / "SHA256SUMS").write_text("0  config.json\n")
    assert t2t_jax.load(copied, average=1).steps == (7,)
    config = read_config(copied)
    become_ordinary(small.with_name("none"))  # and of any other run nothing is removed
    claim(copied, config, Mock(spec=Corpus), vocabulary)
    assert (copied / "SHA256SUMS").is_file()
    claim(copied, config.replace({"training.num_train_steps": 9}), Mock(spec=Corpus), vocabulary)
    assert t2t_jax.load(copied).steps == (2, 6)  # whose config is no longer the published one
    assert saved_steps(copied) == [6, 7]
    become_ordinary(copied)
    assert t2t_jax.load(copied).steps == (6, 7)
    assert not (copied / "model.safetensors").exists()


def _flip(file):
    content = bytearray(file.read_bytes())
    content[-1] ^= 1
    file.write_bytes(content)


def _other_vocabulary(copy):
    file = copy / "model.safetensors"
    about = {"version": 1, "steps": [6], "vocabulary": "none"}
    save_file(load_file(file), file, {"t2t_jax": json.dumps(about)})
    (copy / "SHA256SUMS").unlink()


_OTHER_CONFIG = CONFIG.replace({"decoding.beam_size": 3}).to_json()
_DAMAGES = [
    (lambda copy: _flip(copy / "model.safetensors"), "safetensors is damaged or changed: SHA"),
    (lambda copy: (copy / "model.safetensors").write_bytes(b"12"), "safetensors is damaged or"),
    (lambda copy: (copy / "config.json").write_text(_OTHER_CONFIG), "config.json is damaged or"),
    (lambda copy: (copy / "vocabulary.model").unlink(), "vocabulary .* cannot be read"),
    (_other_vocabulary, "was written with another vocabulary|is not the vocabulary"),
    (lambda copy: (copy / "model.safetensors").unlink(), "and no model.safetensors: the run has"),
    (lambda copy: (copy / "SHA256SUMS").write_text("x"), "SHA256SUMS does not list"),
]


@pytest.mark.parametrize(("damage", "message"), _DAMAGES)
def test_a_damaged_or_changed_file_is_refused_in_one_line(damage, message, small, tmp_path):
    copy = tmp_path / "copy"
    shutil.copytree(small, copy)
    damage(copy)
    with refused(match=message):
        t2t_jax.load(copy)


def _packed(directory, archive):
    kind = {"gz": "gztar", "zip": "zip"}[archive.name.rpartition(".")[2]]
    base = str(archive).removesuffix(".tar.gz").removesuffix(".zip")
    shutil.make_archive(base, kind, directory.parent, directory.name)
    return archive


@pytest.mark.parametrize(
    ("source", "name", "message"),
    [
        ("small", "a.zip", "holds a model that was saved or exported"),
        pytest.param(*("run", "b.tar.gz", "is a read-only copy"), marks=pytest.mark.thorough),
    ],
)
def test_an_archive_opens_as_what_is_in_it(source, name, message, run, small, tmp_path, capsys):
    directory = tmp_path / "it"
    shutil.copytree({"run": run, "small": small}[source], directory)
    (directory / "canary.pkl").write_bytes(b"cos\nsystem\n(S'exit 1'\ntR.")
    archive = _packed(directory, tmp_path / name)
    shutil.rmtree(directory)
    _alike(t2t_jax.load(archive), t2t_jax.load(run))
    [unpacked] = (tmp_path / "cache/t2t_jax/runs").iterdir()
    assert not (unpacked / "canary.pkl").exists()
    before = {path: path.stat().st_mtime_ns for path in unpacked.rglob("*")}
    (tmp_path / "lines").write_text("the dog\n")
    assert main(["translate", "--workdir", str(archive), "--input", str(tmp_path / "lines")]) == 0
    assert capsys.readouterr().out == t2t_jax.load(run).translate(["the dog"])[0] + "\n"
    # Nothing writes into the cache.
    record_scores(FetchedPath(unpacked), _SCORE)
    with refused(match=message):
        check_workdir(read_config(run), FetchedPath(unpacked))
    assert before == {path: path.stat().st_mtime_ns for path in unpacked.rglob("*")}


def _tar(path, *members):
    with tarfile.open(path, "w:gz") as archive:
        for name, kind, content in members:
            info = tarfile.TarInfo(name)
            info.type, info.size = kind, len(content)
            info.linkname = "/etc/passwd" if kind == tarfile.SYMTYPE else ""
            archive.addfile(info, io.BytesIO(content))


_CONFIG = ("r/config.json", tarfile.REGTYPE, b"{}")


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ([_CONFIG, ("r/checkpoints/../../../x", tarfile.REGTYPE, b"1")], "points outside of"),
        ([("/config.json", tarfile.REGTYPE, b"{}")], "points outside of the archive"),
        ([_CONFIG, ("r/vocabulary.model", tarfile.SYMTYPE, b"")], "is a link or a device"),
        ([_CONFIG, ("s/config.json", tarfile.REGTYPE, b"{}")], "several runs, r and s; unpack it"),
        ([("r/notes.txt", tarfile.REGTYPE, b"")], "is not a run directory"),
    ],
)
def test_an_archive_that_is_unsafe_or_has_no_run_leaves_nothing(members, message, tmp_path):
    _tar(tmp_path / "a.tar.gz", *members)
    with refused(match=message):
        t2t_jax.load(tmp_path / "a.tar.gz")
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == [tmp_path / "a.tar.gz"]


@pytest.mark.parametrize("name", thorough_after(1, ["a.tar.gz", "a.zip"]))
def test_a_cut_archive_is_refused(name, small, tmp_path):
    archive = _packed(small, tmp_path / name)
    archive.write_bytes(archive.read_bytes()[:3000])
    with refused(match=r"cannot be unpacked \(.*\); get a new copy"):
        t2t_jax.load(archive)


def test_an_archive_of_far_too_much_is_refused_before_it_is_unpacked(tmp_path, monkeypatch):
    monkeypatch.setattr("t2t_jax.system.opening._MOST_BYTES", 1 << 20)
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("config.json", b"{}")
        archive.writestr("model.safetensors", bytes(1 << 21))
    with refused("is larger than any run"):
        t2t_jax.load(tmp_path / "a.zip")
    assert not (tmp_path / "cache").exists()


def test_a_tar_that_ends_with_a_zip_is_a_tar(small, tmp_path):
    shutil.copytree(small, tmp_path / "r")
    with zipfile.ZipFile(tmp_path / "r/zzz.npz", "w") as file:
        file.writestr("a", "b")
    archive = shutil.make_archive(str(tmp_path / "a"), "tar", tmp_path, "r")
    assert t2t_jax.load(archive).translate(LINES[:1]) == t2t_jax.load(small).translate(LINES[:1])


def test_a_damaged_member_is_one_line(small, tmp_path):
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as file:
        for path in small.iterdir():
            file.write(path, f"r/{path.name}")
    whole = archive.read_bytes()
    place = whole.index(b"config.json") + 20
    archive.write_bytes(whole[:place] + bytes(60) + whole[place + 60 :])
    with refused("a.zip cannot be unpacked"):
        t2t_jax.load(archive)


def test_whatever_a_run_records_is_fetched_with_it():
    assert {"config.json", VOCABULARY, PARAMETERS, CARD, *RECORDS} <= set(RUN_FILES)


def test_a_name_of_a_zip_that_is_no_text_is_one_line(small, tmp_path):
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as file:
        file.write(small / "config.json", "r/ä.json")
    archive.write_bytes(archive.read_bytes().replace("ä".encode(), b"\xe4\xe4"))
    with refused("a.zip cannot be unpacked"):
        t2t_jax.load(archive)


def test_a_directory_is_not_named_like_an_archive(small, tmp_path):
    for line in (["export", "OUT", "--to", "run"], ["publish", "OUT", "--licence", "mit"]):
        out = str(tmp_path / "out.tar.gz")
        with refused("run: tar -czf out.tar.gz out"):
            main([line[0], str(small), *(out if one == "OUT" else one for one in line[1:])])
        assert not (tmp_path / "out.tar.gz").exists()
