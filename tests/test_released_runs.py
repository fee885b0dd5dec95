"""A run that a released version wrote keeps loading, with the same tokens, and trains on.

The runs under `goldens/runs/` were written by these versions themselves, by
`goldens/make_run_golden.py`; those called before-cut by the commit 08046c0, which has that tag.
"""

import dataclasses
import json
import os
import shutil
from pathlib import Path

import pytest

import t2t_jax
from t2t_jax.config import Config, EncoderDecoderConfig, registry
from t2t_jax.config.families import FAMILIES
from t2t_jax.extras.encoders.tasks import MASKED
from t2t_jax.tasks.language_modelling import generate
from tests.programs import run_python
from tests.refusals import refused
from tests.selection import thorough_after

RELEASED = sorted((Path(__file__).parent / "goldens/runs").iterdir())
IDS = [path.name for path in RELEASED]


@pytest.fixture(params=RELEASED[:1], ids=IDS[:1])
def golden(request, tmp_path, tables, monkeypatch):
    """A copy of the oldest golden run, or of another one, in a place where it may be written to."""
    shutil.copytree(request.param, tmp_path / "golden")
    registered = tmp_path / "golden/run/registered"
    monkeypatch.setenv(registry.FILES, os.pathsep.join(map(str, registered.glob("*.py"))))
    return tmp_path / "golden"


every_release = pytest.mark.parametrize("golden", RELEASED, ids=IDS, indirect=True)


def test_the_version_has_a_golden_run_of_its_own():
    version, _, before_release = t2t_jax.__version__.partition(".dev")
    assert before_release or f"{version.rpartition('.')[0]}.0" in IDS


@every_release
def test_a_released_run_translates_with_the_same_tokens(golden):
    expected = json.loads((golden / "expected.json").read_text())
    translator = t2t_jax.load(golden / "run")
    if translator.config.data.task != "auto":
        inputs, texts = map(list, zip(*expected["texts"], strict=True))
        assert _completed(translator, inputs) == texts
        return
    lines = [row["line"] for row in expected["tokens"]]
    for beam_size in (1, 4):
        nbest = translator.nbest(lines, 1, beam_size=beam_size)
        assert [list(best.tokens) for (best,) in nbest] == [
            row[f"beam_{beam_size}"] for row in expected["tokens"]
        ]


def _completed(translator, inputs):
    """Continue prompts, or fill in masks, by the task of a model."""
    if translator.config.data.task == "language_modelling":
        return generate(translator, inputs, max_tokens=20, temperature=0.0)
    return MASKED.lines(translator, inputs)


@dataclasses.dataclass(frozen=True)
class _LaterModelConfig(EncoderDecoderConfig):
    """The network with a field that no release has."""

    num_experts: int = 1


@dataclasses.dataclass(frozen=True)
class _LaterConfig(Config):
    """The config of a release to come."""

    model: _LaterModelConfig = dataclasses.field(default_factory=_LaterModelConfig)


def test_a_released_run_is_loaded_by_a_release_whose_model_has_a_new_field(golden, monkeypatch):
    expected = json.loads((golden / "expected.json").read_text())["tokens"][0]
    monkeypatch.setattr(t2t_jax.config.config, "Config", _LaterConfig)
    later = dataclasses.replace(FAMILIES["encoder_decoder"], config=_LaterModelConfig)
    monkeypatch.setitem(FAMILIES, "encoder_decoder", later)
    translator = t2t_jax.load(golden / "run")
    assert translator.config.model.num_experts == 1
    ((best,),) = translator.nbest([expected["line"]], 1, beam_size=1)
    assert list(best.tokens) == expected["beam_1"]


@pytest.mark.parametrize("golden", thorough_after(1, RELEASED), ids=IDS, indirect=True)
def test_a_released_run_trains_on_with_the_same_losses(golden):
    expected = json.loads((golden / "expected.json").read_text())["losses"]
    config = t2t_jax.load(golden / "run").config.replace(
        {
            "data.corpus": f"text:{golden / 'corpus'}",
            "data.cache_dir": str(golden / "cache"),
            "training.num_train_steps": max(map(int, expected)),
            "training.log_every_steps": 1,
            "evaluation.every_steps": 10_000,
            "evaluation.num_sentences": 1,
        }
    )
    assert t2t_jax.train(config, golden / "run").exit_code == 0
    records = map(json.loads, (golden / "run/log.jsonl").read_text().splitlines())
    losses = {str(r["step"]): r["loss"] for r in records if r["of"] == "train"}
    assert {step: losses[step] for step in expected} == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize(
    "golden", RELEASED[IDS.index("before-cut-translation") :][:1], indirect=True
)
def test_a_run_names_the_kept_file_of_a_renamed_field(golden, monkeypatch):
    monkeypatch.delenv(registry.FILES)
    with refused(f"read {golden}/run/registered/score_function.py, and name it in"):
        t2t_jax.load(golden / "run")


_WATCHED = """
import sys
import t2t_jax

seen = set()
watched = ("pickle.find_class", "os.system", "subprocess.Popen", "os.exec", "os.posix_spawn",
           "socket.connect", "exec", "marshal.loads")

def watch(event, arguments):
    if event in watched and armed:
        code = arguments[0] if event == "exec" else None
        # Imports execute modules, and named tuples and data classes are made of text.
        if code is None or sys.argv[1] in code.co_filename:
            seen.add(event)

import t2t_jax.run.loading
armed = False
sys.addaudithook(watch)
translator = t2t_jax.load(sys.argv[1])  # imports what is imported late
armed = True
t2t_jax.load(sys.argv[1]).translate(["Crazyhouse games"])
print(sorted(seen))
"""


def test_to_load_a_run_and_translate_executes_nothing_out_of_it(golden):
    """Neither pickles nor code are read, no program is started, and no connection is made."""
    done = run_python("-c", _WATCHED, str(golden / "run"))
    assert done.stdout == "[]\n", done.stdout + done.stderr


_SPAWNING = """
import multiprocessing, sys
import t2t_jax

def translate(line):
    return t2t_jax.load(sys.argv[1]).translate([line])[0]

if __name__ == "__main__":
    here = t2t_jax.load(sys.argv[1]).translate(["Crazyhouse games"])
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.map(translate, ["Crazyhouse games"]) == here
    print(here[0])
"""


@pytest.mark.faults
def test_a_process_that_is_spawned_after_a_run_was_loaded_loads_it_too(golden):
    (golden / "spawning.py").write_text(_SPAWNING)
    done = run_python(str(golden / "spawning.py"), str(golden / "run"))
    assert done.stdout == "Crazyhouse-Partien\n", done.stderr
