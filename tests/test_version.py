"""What was renamed works for one version under its old name, and is then refused by the new one.

Saved runs keep their old names for good.
"""

import json
import shutil
from pathlib import Path

import pytest

import t2t_jax
from t2t_jax.commands.entry import entry_command
from t2t_jax.commands.groups import all_commands
from t2t_jax.config import Config, EncoderDecoderConfig
from t2t_jax.config.config import check_recipe, from_dict, known_fields
from t2t_jax.data.vocabulary import Vocabulary
from t2t_jax.extras.interchange.formats import REMOVED_FORMATS, readable, writable
from t2t_jax.version import REMOVED, REMOVED_COMMANDS, RENAMED, Renamed
from tests.refusals import refused

COMMAND_NAMES = {name for group in all_commands().values() for name in group}
NOW = ".".join(t2t_jax.__version__.split(".")[:2])


@pytest.fixture(params=[NOW, "0.1"], ids=["this version", "a version before"])
def since(request, monkeypatch):
    """The version that renamed a field, a flag and a name of the package."""
    since = request.param
    monkeypatch.setitem(RENAMED, "model.width", Renamed("model.d_model", since))
    monkeypatch.setitem(RENAMED, "--bundle", Renamed("--workdir", since))
    monkeypatch.setitem(RENAMED, "t2t-jax teach", Renamed("t2t-jax train", since))
    monkeypatch.setitem(RENAMED, "t2t_jax.restore", Renamed("t2t_jax.load", since))
    return since


TRAIN = "train --config configs/base.py --workdir w"
USES = {
    "a field in a config file": (
        "model.width",
        lambda: Config().replace({"model.width": 64}).model.d_model == 64,
    ),
    "a field as a keyword": ("model.width", lambda: EncoderDecoderConfig(width=64).d_model == 64),
    "a field as a flag": (
        "model.width",
        lambda: entry_command(f"{TRAIN} --model.width=64".split()).fields.model.d_model == 64,
    ),
    "a field as a flag with a space": (
        "model.width",
        lambda: entry_command(f"{TRAIN} --model.width 64".split()).fields.model.d_model == 64,
    ),
    "another flag": (
        "--bundle",
        lambda: entry_command(["report", "--bundle=runs/w"]).workdir == Path("runs/w"),
    ),
    "a command": (
        "t2t-jax teach",
        lambda: entry_command(TRAIN.replace("train", "teach").split()).workdir == Path("w"),
    ),
    "a name of the package": ("t2t_jax.restore", lambda: t2t_jax.restore is t2t_jax.load),
}


@pytest.mark.parametrize(("old", "use"), USES.values(), ids=USES.keys())
def test_an_old_name_works_with_one_warning_for_one_version(since, capsys, old, use):
    new = RENAMED[old].name
    if since == NOW:
        assert use()
        warning = f"warning: {old} is now called {new}, and later versions refuse the old name\n"
        assert capsys.readouterr().err == warning
    else:
        with refused(match=rf"^{old} is called {new} since version 0\.1; use that"):
            use()


@pytest.mark.usefixtures("since")
def test_a_run_with_the_old_name_of_a_field_is_read_without_a_word(capsys):
    saved = json.loads(Config().replace({"model.d_model": 64}).to_json())
    saved["model"]["width"] = saved["model"].pop("d_model")
    assert from_dict(saved) == Config().replace({"model.d_model": 64})
    assert capsys.readouterr().err == ""


def test_every_old_name_is_gone_and_every_new_one_is_there():
    fields = known_fields()
    for old, (new, since) in RENAMED.items():
        assert tuple(map(int, since.split("."))) <= tuple(map(int, NOW.split(".")))
        if old.startswith("t2t-jax "):
            assert old.removeprefix("t2t-jax ") not in COMMAND_NAMES
            assert new.removeprefix("t2t-jax ") in COMMAND_NAMES
        elif not old.startswith(("--", "t2t_jax.")):
            assert old not in fields
            assert new in fields
        elif old.startswith("t2t_jax."):
            assert new.removeprefix("t2t_jax.") in t2t_jax.__all__


_REFUSED = r"version 0\.3 removed .*; the git tag before-cut"
USED = {
    "checkpoint.local_dir": "/local",
    "checkpoint.local_every_steps": 10,
    "data.bpe_dropout": 0.1,
    "data.context_sentences": 1,
    "data.context_sides": "both",
    "data.image_flip": True,
    "data.image_resize": True,
    "data.image_shift": 1,
    "data.mixture_temperature": 5.0,
    "data.whole_words": True,
    "model.output_transform": True,
}
"""A value of each deleted field with which a run is refused."""


@pytest.mark.parametrize("path", sorted(REMOVED))
def test_a_run_is_readable_unless_its_model_used_a_deleted_feature(path):
    section, name = path.split(".")
    saved, row = json.loads(Config().to_json()), REMOVED[path]
    for value in row.unused or ():
        saved[section][name] = list(value) if isinstance(value, tuple) else value
        assert from_dict(saved) == Config()
        check_recipe(json.dumps(saved))
    saved[section][name] = USED[path]
    if row.trains_only or row.unused is None:
        assert from_dict(saved) == Config()
    else:
        with refused(match=_REFUSED):
            from_dict(saved)
    if row.unused is None:
        check_recipe(json.dumps(saved))
    else:
        with refused(match=_REFUSED):
            check_recipe(json.dumps(saved))
    assert path not in known_fields()


def test_a_run_whose_training_used_a_deleted_feature_translates_and_does_not_train_on(tmp_path):
    golden = Path(__file__).parent / "goldens/runs/0.2.0"
    run = shutil.copytree(golden / "run", tmp_path / "run")
    saved = json.loads((run / "config.json").read_text())
    saved["data"]["image_shift"] = 1
    (run / "config.json").write_text(json.dumps(saved))
    translator = t2t_jax.load(run)
    assert translator.translate(["Crazyhouse games"]) == ["Crazyhouse-Partien"]
    with refused(match=r"^data\.image_shift=1: version 0\.3 removed shifted images"):
        t2t_jax.train(translator.config, run)


def test_a_run_of_0_1_0_is_refused_by_its_version():
    saved = json.loads(Config().to_json())
    del saved["model"]["architecture"]
    with refused(match=r"runs of version 0\.1\.0 .* use version 0\.2\.0"):
        from_dict(saved)


@pytest.mark.parametrize("name", sorted(REMOVED_COMMANDS))
def test_a_deleted_command_is_refused_by_its_feature(name):
    assert name not in COMMAND_NAMES
    for flags in ([], ["--help"]):
        with refused(match=rf"^t2t-jax {name}: {_REFUSED}"):
            entry_command([*name.split(), *flags])


def test_the_flag_of_a_deleted_field_is_refused_by_its_feature():
    line = "train --config configs/base.py --workdir w --data.bpe-dropout 0.1"
    with refused(match=rf"^--data\.bpe-dropout: {_REFUSED}"):
        entry_command(line.split())


def test_a_vocabulary_of_a_removed_kind_names_the_tag(tmp_path):
    file = tmp_path / "vocabulary.model"
    file.write_text('{"kind": "moses", "codes": ""}', encoding="utf-8")
    with refused("removed Moses vocabularies; the git tag before-cut"):
        Vocabulary.load(file)


@pytest.mark.parametrize("name", REMOVED_FORMATS)
@pytest.mark.parametrize("line", ["import {} model run", "export run model --to {}"])
def test_a_removed_format_names_the_tag(name, line):
    assert name not in readable() | writable()
    with refused(match=rf"^{name}: version 0\.3 removed .*; the git tag before"):
        entry_command(line.format(name).split()).run()
