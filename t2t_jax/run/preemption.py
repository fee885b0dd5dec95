"""Notices of preemption: a cloud announces to a host that it will take it away.

Hosts of Google Cloud (also TPUs) and of AWS learn it from a metadata server; AWS announces it two
minutes ahead. Schedulers such as Slurm send SIGTERM in advance and need no poller.
"""

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from contextlib import suppress
from http.client import HTTPException
from threading import Event, Thread

from t2t_jax.errors import warn
from t2t_jax.system.host import Cloud

_POLL_SECONDS = 5.0
_TIMEOUT = 3.0


class PreemptionNotices:
    """A thread that asks the metadata server of a cloud, within a `with` block."""

    def __init__(self, cloud: Cloud | None) -> None:
        """Start without a notice; None asks nobody."""
        self._poll = {"gce": _notice_of_gce, "aws": _notice_of_aws}[cloud] if cloud else None
        self._notice, self._is_taken, self._over = "", False, Event()

    def __enter__(self) -> "PreemptionNotices":
        """Start to ask."""
        if self._poll:
            Thread(target=self._watch, args=(self._poll,), daemon=True, name="notices").start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop asking."""
        self._over.set()

    def take(self) -> str:
        """Return a new notice, and "" if there is none since the last call."""
        if self._is_taken:
            return ""
        self._is_taken = bool(self._notice)
        return self._notice

    def _watch(self, poll: Callable[[], str]) -> None:
        has_answered = False
        while not self._over.is_set():
            try:
                self._notice = poll()
                self._is_taken &= bool(self._notice)  # it may be over, as after a live migration
                has_answered = True
            except (OSError, HTTPException, ValueError) as error:
                if not has_answered:
                    warn(f"the metadata server of this host does not answer ({error})")
                    has_answered = True  # one warning is enough
            self._over.wait(_POLL_SECONDS)


def _notice_of_gce() -> str:
    server = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    instance = f"http://{server}/computeMetadata/v1/instance"
    headers = {"Metadata-Flavor": "Google"}
    if _answer(f"{instance}/preempted", headers) == "TRUE":
        return "preempted"
    event = _answer(f"{instance}/maintenance-event", headers)
    return "" if event == "NONE" else event


def _notice_of_aws() -> str:
    server = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")
    latest = f"{server.rstrip('/')}/latest"
    seconds = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = {"X-aws-ec2-metadata-token": _answer(f"{latest}/api/token", seconds, "PUT")}
    with suppress(urllib.error.HTTPError):  # 404 while there is no notice
        action = json.loads(_answer(f"{latest}/meta-data/spot/instance-action", token))
        return f"{action.get('action')} at {action.get('time')}"
    return ""


def _answer(url: str, headers: dict[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=headers, method=method)
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # no proxy knows the host
    with direct.open(request, timeout=_TIMEOUT) as answer:
        return str(answer.read().decode()).strip()
