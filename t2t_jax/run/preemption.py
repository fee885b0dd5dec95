"""Preemption notices: a cloud announces that it will soon take a host away.

Google Cloud (also for TPUs) and AWS announce preemption on a metadata server, AWS two minutes in
advance. Schedulers such as Slurm send SIGTERM instead, which needs no polling.
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
    """A context with a thread that polls the metadata server of a cloud."""

    def __init__(self, cloud: Cloud | None) -> None:
        """Select the metadata server of a cloud; None polls no server."""
        self._poll = {"gce": _notice_of_gce, "aws": _notice_of_aws}[cloud] if cloud else None
        self._notice, self._is_taken, self._over = "", False, Event()

    def __enter__(self) -> "PreemptionNotices":
        """Start the thread that polls the metadata server."""
        if self._poll:
            Thread(target=self._watch, args=(self._poll,), daemon=True, name="notices").start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the thread that polls the metadata server."""
        self._over.set()

    def take(self) -> str:
        """Return the preemption notice of this host, once per notice; "" without a new one."""
        if self._is_taken:
            return ""
        self._is_taken = bool(self._notice)
        return self._notice

    def _watch(self, poll: Callable[[], str]) -> None:
        has_answered = False
        while not self._over.is_set():
            try:
                self._notice = poll()
                # A notice may end, for example after a live migration.
                self._is_taken &= bool(self._notice)
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
    ttl_header = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token_header = {"X-aws-ec2-metadata-token": _answer(f"{latest}/api/token", ttl_header, "PUT")}
    with suppress(urllib.error.HTTPError):  # 404 while there is no notice
        action = json.loads(_answer(f"{latest}/meta-data/spot/instance-action", token_header))
        return f"{action.get('action')} at {action.get('time')}"
    return ""


def _answer(url: str, headers: dict[str, str], method: str = "GET") -> str:
    request = urllib.request.Request(url, headers=headers, method=method)
    # Proxies cannot reach the metadata server.
    direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with direct.open(request, timeout=_TIMEOUT) as answer:
        return str(answer.read().decode()).strip()
