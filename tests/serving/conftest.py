"""Servers that run in a thread of the test, on a port of their own."""

import contextlib
import threading
import time
from concurrent.futures import Future
from dataclasses import replace

import httpx
import pytest
import uvicorn

from t2t_jax.decoding.open_search import Limits, QueueFullError
from t2t_jax.decoding.translations import Hypothesis
from t2t_jax.serving.access import Access
from t2t_jax.serving.answers import Answers
from t2t_jax.serving.app import Server
from t2t_jax.serving.engine import Load
from t2t_jax.serving.languages import Languages
from t2t_jax.serving.metrics import ServerMetrics
from t2t_jax.serving.searches import Searches
from t2t_jax.serving.server import Entrance, bound_socket, settings
from t2t_jax.serving.service import ServedModel
from t2t_jax.serving.settings import Bounds
from tests.interchange.models import portable, translator_of

DECODING = {"beam_size": 2, "max_extra_length": 5}


@pytest.fixture(scope="session")
def translator():
    return translator_of(portable({"model.num_encoder_layers": 1, "model.num_decoder_layers": 2}))


@pytest.fixture(scope="session")
def searches(translator):
    decoding = replace(translator.config.decoding, **DECODING)
    engine = Searches(translator, decoding, Limits(rows=4, longest=32), has_terms=True)
    yield engine
    engine.close()


class Patient:
    """An engine that answers, in capitals, when the test says so."""

    most_best = 1
    languages = None

    def __init__(self, *, room=10**9):
        self.asked, self.room, self.closed = [], room, False

    def between(self, source, target):
        return self

    def prepare(self, sentences):
        if "explode" in sentences:
            raise ZeroDivisionError("explode")
        return [[[ord(letter) for letter in one]] if one.strip() else [] for one in sentences]

    def submit(self, tokens, wanted, *, timeout, listener=None):
        if sum(not future.done() for _, future in self.asked) >= self.room:
            raise QueueFullError("sentences wait already")
        future = Future()
        self.asked.append((tokens, future))
        return future

    def answer(self):
        for tokens, future in self.asked:
            if not future.done():
                text = "".join(map(chr, tokens)).upper()
                future.set_result([Hypothesis(text, -1.0, -2.0, tuple(tokens))])

    def align(self, sources, targets):
        return None

    def terms(self, terms):
        return None

    marks_terms = False

    def spells(self, text):
        return True

    def confidence(self, hypothesis):
        return 0.5

    def load(self):
        return Load(len(self.asked), 0, 1)

    def warm_up(self):
        pass

    def close(self):
        self.closed = True


class Quick(Patient):
    """An engine that answers at once."""

    def submit(self, *given, **options):
        future = super().submit(*given, **options)
        self.answer()
        return future


@contextlib.contextmanager
def running(engines, *, split="sentences", keys=None, bounds=None, proxies=(), **options):
    """A client of a server with these engines, by their languages, and the server."""
    bounds = bounds or Bounds()
    models = [ServedModel(*pair, engine, bounds) for pair, engine in engines.items()]
    answers = Answers(Languages(models), bounds, ServerMetrics(), split)
    server = Server(answers, Access(keys, bounds.requests_per_minute), **options)
    bound = bound_socket("127.0.0.1", 0)
    listener = uvicorn.Server(settings(Entrance(server), bounds, proxies))
    thread = threading.Thread(target=listener.run, kwargs={"sockets": [bound]})
    thread.start()
    until(lambda: listener.started)
    try:
        address = f"http://127.0.0.1:{bound.getsockname()[1]}"
        with httpx.Client(base_url=address, timeout=60) as client:
            yield client, server
    finally:
        listener.should_exit = True
        thread.join()
        bound.close()


def until(condition, seconds=30.0):
    """Wait for something that another thread does."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it has not happened"
        time.sleep(0.01)
