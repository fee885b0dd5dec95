"""The replay of halving over a grid that was trained whole, on logs whose answer is known."""

import importlib
import json

import pytest

from t2t_jax.config import to_dict
from tests.sweep.test_halving import BASE, RESULT

ENDS = {"base": (9.0, 5.0, 4.0), "a": (8.0, 4.0, 3.0), "b": (7.0, 6.0, 1.0), "c": (6.0, 3.0, 2.0)}
GRID = """
from t2t_jax import Config

BASE = Config.from_json({text!r})
VARIANTS = {{"base": BASE}} | {{n: BASE.replace({{"model.d_ff": 64 + ord(n)}}) for n in "abc"}}
"""


@pytest.fixture
def whole(tmp_path):
    """A grid of four rows, of which b is the best at the end, and c before."""
    (tmp_path / "grid.py").write_text(GRID.format(text=BASE.to_json()))
    for name, scores in ENDS.items():
        config = BASE if name == "base" else BASE.replace({"model.d_ff": 64 + ord(name)})
        place = tmp_path / "runs" / name / "seed0"
        place.mkdir(parents=True)
        lines = [
            {"step": step, "of": "dev", "time": 0.0, "perplexity": score}
            for step, score in zip((10, 28), scores, strict=False)
        ]
        (place / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
        result = {**RESULT, "config": to_dict(config), "perplexity": scores[2]}
        (place / "result.json").write_text(json.dumps(result))
    return tmp_path


def test_the_regret_and_the_saving_are_those_of_the_logs(whole, capsys):
    program = importlib.import_module("benchmarks.halving")
    place = [str(whole / "runs"), f"--config={whole / 'grid.py'}"]
    assert program.main([*place, "--json", "--halving", "rungs=3,keep=0.67"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["steps of the rungs"] == [40, 60, 90]
    assert found["rows at the rungs"] == [4, 3, 2]
    assert (found["best of them"], found["best of all"], found["regret"]) == ("c", "b", 1.0)
    assert found["share of steps saved"] == pytest.approx(1 - (90 + 60 + 40 + 90) / 360)
    assert program.main([*place, "--halving", "rungs=4,keep=0.33"]) == 2
    assert "has no evaluation on dev up to the rung at step 4" in capsys.readouterr().err
