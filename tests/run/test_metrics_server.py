"""Metrics of a training for Prometheus, read back by its own parser."""

import re
import socket
import struct
import time
import urllib.request

import pytest
from prometheus_client.parser import text_string_to_metric_families

from t2t_jax.errors import UserError
from t2t_jax.run import trainer
from t2t_jax.run.meter import serving_metrics
from tests.trained import records_of


@pytest.fixture
def port():
    """A port that nothing listens on."""
    with socket.create_server(("localhost", 0)) as server:
        return server.getsockname()[1]


def _scraped(port):
    with urllib.request.urlopen(f"http://localhost:{port}/metrics") as answer:
        families = [*text_string_to_metric_families(answer.read().decode())]
    assert all(family.type == "gauge" and family.documentation for family in families)
    return {family.name: family.samples[0].value for family in families}


@pytest.mark.thorough
def test_the_metrics_are_the_last_line_of_the_log(tiny_run, tmp_path, port, monkeypatch):
    config = tiny_run.config.replace(tiny_run.without_dev)
    config = config.replace({"training.num_train_steps": 3, "training.log_every_steps": 2})
    scraped = {}
    end_reason = trainer._end_reason

    def scrape(*arguments):  # once all steps are done, while the run is still open
        scraped.update(_scraped(port))
        return end_reason(*arguments)

    monkeypatch.setattr(trainer, "_end_reason", scrape)
    trainer.train(config, tmp_path / "run", metrics_port=port)
    last = records_of(tmp_path / "run", "train")[-1]
    logged = ("step", "loss", "target_tokens_per_second", "step_seconds", "host_memory_bytes")
    assert 0 <= scraped.pop("t2t_jax_seconds_since_checkpoint") < 60
    assert scraped == {f"t2t_jax_{name}": pytest.approx(last[name]) for name in logged}
    with pytest.raises(OSError, match="refused"):
        _scraped(port)


def test_before_the_run_is_ready_there_are_no_metrics(port):
    with serving_metrics(port):
        assert _scraped(port) == {}


def test_a_client_that_resets_its_connection_prints_nothing(port, capfd):
    no_linger = struct.pack("ii", 1, 0)  # closing then sends a reset
    with serving_metrics(port):
        with socket.create_connection(("localhost", port)) as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, no_linger)
            client.sendall(b"GET /metr")
        assert _scraped(port) == {}
        time.sleep(0.1)  # the thread of the first client
    assert capfd.readouterr().err == ""


@pytest.mark.parametrize("number", [None, -1, 70_000])
def test_a_port_that_cannot_be_used_is_refused_before_training(tiny_run, tmp_path, number):
    config = tiny_run.config
    with socket.create_server(("0.0.0.0", 0)) as taken:
        port = taken.getsockname()[1] if number is None else number
        message = rf"--metrics-port {re.escape(str(port))} cannot be used \(.*\); give another port"
        with pytest.raises(UserError, match=message):
            trainer.train(config, tmp_path / "run", metrics_port=port)
    assert not (tmp_path / "run").exists()
