"""SIGTERM and Ctrl-C as a wish to stop."""

import os
import signal
import threading

import pytest

from t2t_jax.system.signals import StopSignal, safe_point


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


def test_a_signal_ends_an_attempt_at_its_next_safe_point_and_prevents_the_next_attempt():
    done = []
    with StopSignal() as stop:
        assert stop.attempt(lambda: 5) == 5

        def work():
            safe_point()
            _send(signal.SIGTERM)
            done.append("nothing is raised just anywhere")
            safe_point()
            done.append("after it")

        assert stop.attempt(work) is None
        assert stop.attempt(lambda: done.append("again")) is None
        safe_point()  # of work that is not an attempt
    assert done == ["nothing is raised just anywhere"]
    assert stop.number == signal.SIGTERM


def test_off_the_main_thread_a_signal_stays_what_it_was_and_work_is_done():
    before = signal.getsignal(signal.SIGTERM)
    done = []

    def work():
        with StopSignal() as stop:
            done.append(signal.getsignal(signal.SIGTERM))
            done.append(stop.attempt(lambda: "work"))
            done.append(stop.number)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert done == [before, "work", 0]


def test_an_ignored_signal_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    with StopSignal() as stop:
        _send(signal.SIGHUP)
    assert stop.number == 0
    signal.signal(signal.SIGHUP, before)
