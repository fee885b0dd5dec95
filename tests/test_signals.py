"""SIGTERM and Ctrl-C as a wish to stop."""

import os
import signal

import pytest

from t2t_jax.signals import StopSignal


def _send(number):
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_is_noted_and_handlers_are_put_back(number):
    before = signal.getsignal(number)
    with StopSignal() as stop:
        assert stop.number == 0
        _send(number)
        assert stop.number == number
    assert signal.getsignal(number) == before


@pytest.fixture
def ctrl_c():
    """What Ctrl-C does in a program of its own; a shell's background starts with it ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("ctrl_c")
def test_a_second_signal_is_not_held_back():
    with StopSignal() as stop:
        _send(signal.SIGINT)
        assert stop.number == signal.SIGINT
        with pytest.raises(KeyboardInterrupt):
            _send(signal.SIGINT)


def test_a_signal_ends_an_attempt_and_prevents_the_next():
    done = []
    with StopSignal() as stop:
        assert stop.attempt(lambda: 5) == 5

        def work():
            done.append("begun")
            _send(signal.SIGTERM)
            done.append("ended")

        assert stop.attempt(work) is None
        assert stop.attempt(lambda: done.append("again")) is None
    assert done == ["begun"]
    assert stop.number == signal.SIGTERM
