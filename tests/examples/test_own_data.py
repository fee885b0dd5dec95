"""Data made in Python, against dates that the standard library writes, and against text files."""

from datetime import date

import t2t_jax
from tests.examples.loading import load_example
from tests.trained import bits


def test_dates_are_translated_and_the_run_is_that_on_text_files(tmp_path, monkeypatch):
    example = load_example("own_data")
    splits, small = example.data(), example.config(2)
    small = small.replace({"data.cache_dir": str(tmp_path / "cache"), "model.d_model": 16})
    splits["train"], splits["test"] = example.Dates(0, 300), example.Dates(2, 5)
    monkeypatch.setattr(example, "data", lambda: splits)
    monkeypatch.setattr(example, "config", lambda steps: small)
    accuracy = example.main(str(tmp_path / "run"), 2)
    assert accuracy in (0, 0.2, 0.4, 0.6, 0.8, 1)
    rows = [*map(splits["train"].__getitem__, range(300))]
    digits = [row["digits"] for row in rows]
    words = [f"{date.fromisoformat(x):%d %B of the year %Y}".lstrip("0") for x in digits]
    assert words == [row["words"] for row in rows]
    for name, lines in (("digits", digits), ("words", words)):
        (tmp_path / f"train.{name}").write_text("".join(f"{line}\n" for line in lines))
    t2t_jax.train(small.replace({"data.corpus": f"text:{tmp_path}"}), tmp_path / "files")
    assert bits(tmp_path / "run") == bits(tmp_path / "files")
