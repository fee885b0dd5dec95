"""Values of the user in messages of errors: one line, and not more of a long value than helps."""

import pytest

import t2t_jax
from t2t_jax.config import Config
from t2t_jax.config.file import checked_grid
from t2t_jax.data.corpus import open_corpus
from t2t_jax.decoding.arguments import texts
from t2t_jax.errors import UserError, quote

PAIRS = [("a red house", "ein rotes Haus")] * 3000
NAME = "x" * 5000
HUGE = 10**5000  # which Python itself refuses to print


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no repr")


CALLS = {
    "a list for a text": lambda: Config().replace({"data.corpus": PAIRS}),
    "a list for a number": lambda: Config().replace({"model.d_model": PAIRS}),
    "an unknown choice": lambda: Config().replace({"training.schedule": NAME}),
    "an unknown name": lambda: Config().replace({"model.activation": NAME}),
    "a number of 5,001 digits": lambda: Config().replace({"model.d_model": HUGE}),
    "an unknown field": lambda: Config().replace({NAME: 1}),
    "no name of a directory": lambda: checked_grid({f"{NAME}/": Config()}, {}, "grid.py"),
    "no run directory": lambda: t2t_jax.load([PAIRS]),
    "no mesh": lambda: t2t_jax.load("runs/none", parallel=PAIRS),
    "no corpus": lambda: open_corpus(Config().replace({"data.corpus": NAME}).data),
    "no lines": lambda: texts([PAIRS], "lines"),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=list(CALLS))
def test_a_long_value_is_cut_in_an_error(call):
    with pytest.raises((UserError, TypeError)) as refused:
        call()
    message = str(refused.value)
    assert len(message) < 800
    assert "\n" not in message


def test_a_value_is_quoted_in_one_line():
    assert quote("a\nb") == repr("a\nb")
    assert quote("x" * 300) == "'" + "x" * 199 + "..."
    assert quote(HUGE) == "a int"
    assert quote(Unprintable()) == "a Unprintable"
