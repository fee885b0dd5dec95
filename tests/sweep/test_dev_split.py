"""Rows without a dev set, or with another, before anything is trained."""

import pytest

from t2t_jax import Config, UserError
from t2t_jax.config.file import Grid
from t2t_jax.sweep.grid import check_dev_sets, run_grid
from tests.sweep.conftest import QUIET, AtOnce


@pytest.fixture
def corpora(tmp_path):
    """Two corpora with one dev set, and a third with another."""
    for name, train, dev in (("a", "one", "dev"), ("b", "two", "dev"), ("c", "one", "other")):
        (tmp_path / name).mkdir()
        for split, line in (("train", train), ("dev", dev)):
            for language in ("en", "de"):
                (tmp_path / name / f"{split}.{language}").write_text(f"{line}\n")
    return tmp_path


def warned(capsys, **corpora):
    base = Config()
    rows = {name: base.replace({"data.corpus": corpus}) for name, corpus in corpora.items()}
    check_dev_sets(Grid(rows, {}))
    return capsys.readouterr().err


def test_rows_with_another_dev_set_are_named(corpora, capsys):
    a, b, c = (f"text:{corpora / name}" for name in "abc")
    assert warned(capsys, base=a, more=b, again=a) == ""
    message = warned(capsys, base=a, more=b, other=c, mixed=f"{c}+{a}")
    assert message.startswith("warning: other, mixed: the dev set differs from base's, so the")


def test_a_corpus_of_another_machine_is_left_to_its_cells(corpora, capsys):
    assert warned(capsys, base=f"text:{corpora / 'a'}", far="text:/nowhere") == ""
    assert warned(capsys, base="text:/nowhere", near=f"text:{corpora / 'a'}") == ""


def test_a_grid_without_a_dev_set_starts_no_cell(corpora):
    for file in (corpora / "b").glob("dev.*"):
        file.unlink()
    rows = {"base": Config().replace({"data.corpus": f"text:{corpora / 'b'}"})}
    with pytest.raises(UserError, match=r"started: base: .*/b has no dev split; add one, or"):
        run_grid(rows, corpora / "runs", launcher=AtOnce(), console=QUIET)
    assert not (corpora / "runs").exists()
