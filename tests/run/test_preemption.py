"""Notices of preemption, from a server with the answers of the metadata servers."""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from t2t_jax.run.preemption import PreemptionNotices
from t2t_jax.run.trainer import train
from t2t_jax.training.checkpoint_files import steps_in
from tests.programs import wait_until

GCE = "/computeMetadata/v1/instance"
AWS = "/latest/meta-data/spot/instance-action"


class _Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        is_google = self.headers.get("Metadata-Flavor") == "Google"
        may_read = is_google or self.headers.get("X-aws-ec2-metadata-token") == "token"
        self._answer(self.server.answers.get(self.path) if may_read else None)

    def do_PUT(self):
        has_time = "X-aws-ec2-metadata-token-ttl-seconds" in self.headers
        self._answer("token" if has_time and self.path == "/latest/api/token" else None)

    def _answer(self, text):
        self.send_response(404 if text is None else 200)
        self.end_headers()
        self.wfile.write((text or "").encode())

    def log_message(self, *_):
        """Print nothing."""


@pytest.fixture
def server(monkeypatch):
    """A metadata server without a notice; `answers` has what it says by path."""
    with ThreadingHTTPServer(("localhost", 0), _Handler) as server:
        place = f"localhost:{server.server_port}"
        monkeypatch.setenv("GCE_METADATA_HOST", place)
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{place}/")
        # Clusters set a proxy for all programs.
        monkeypatch.setenv("http_proxy", "http://localhost:1")
        monkeypatch.setenv("no_proxy", "")
        monkeypatch.setattr("t2t_jax.run.preemption._POLL_SECONDS", 0.05)
        server.answers = {f"{GCE}/preempted": "FALSE", f"{GCE}/maintenance-event": "NONE"}
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield server
        server.shutdown()


@pytest.mark.parametrize(
    ("cloud", "path", "text", "notice"),
    [
        ("gce", f"{GCE}/preempted", "TRUE", "preempted"),
        ("gce", f"{GCE}/maintenance-event", "TERMINATE_ON_HOST_MAINTENANCE\n", "TERMINATE_ON"),
        ("aws", AWS, '{"action": "stop", "time": "2026-01-01T00:02:00Z"}', "stop at 2026-01-01T"),
    ],
)
def test_each_notice_is_taken_once(server, cloud, path, text, notice):
    with PreemptionNotices(cloud) as notices:
        time.sleep(0.3)
        assert notices.take() == ""
        before, server.answers[path] = server.answers.get(path), text
        assert wait_until(notices.take, 10).startswith(notice)
        assert notices.take() == ""
        server.answers[path] = before
        time.sleep(0.3)
        server.answers[path] = text  # a later one, as after a live migration
        assert wait_until(notices.take, 10).startswith(notice)


def test_a_host_without_a_metadata_server_warns_once(monkeypatch, capsys):
    monkeypatch.setenv("GCE_METADATA_HOST", "localhost:1")
    monkeypatch.setattr("t2t_jax.run.preemption._POLL_SECONDS", 0.05)
    with PreemptionNotices("gce") as notices:
        time.sleep(0.5)
        assert notices.take() == ""
    assert capsys.readouterr().err.count("does not answer") == 1


@pytest.mark.thorough
def test_a_training_saves_its_state_at_a_notice_and_goes_on(server, tiny_run, tmp_path, capsys):
    changes = {"training.num_train_steps": 150, "checkpoint.every_steps": None}
    config = tiny_run.config.replace(tiny_run.without_dev | changes | {"checkpoint.keep": 9})
    server.answers[f"{GCE}/preempted"] = "TRUE"
    assert train(config, tmp_path / "run", preemption_notices="gce").exit_code == 0
    first, last = steps_in(tmp_path / "run" / "checkpoints")
    assert first < last == 150
    assert "preemption notice (preempted)" in capsys.readouterr().err
