"""A local server with the part of the hub's protocol that publishing and loading a run take.

It has the answers that huggingface_hub asks for: the models with their revisions, trees and files,
uploads in the order preupload, batch of LFS, objects, commit, and refusals with the hub's headers.
"""

import base64
import hashlib
import json
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from huggingface_hub import constants

LARGE = ".safetensors", ".model"
"""The ends of the names of files that the hub keeps as objects of LFS."""


class Model:
    """A model of the hub: its branches, and the files of each commit."""

    def __init__(self, private=False, gated=False):
        self.private, self.gated = private, gated
        self.commits, self.refs = {}, {}
        self.commit({}, "main")

    def commit(self, files, branch="main"):
        """Add a commit with all of these files, and return its hash."""
        seed = repr((len(self.commits), branch, sorted(files))).encode()
        digest = hashlib.sha1(seed).hexdigest()
        self.commits[digest], self.refs[branch] = files, digest
        return digest

    def find(self, revision):
        """Return the hash of the commit of a branch or of a hash; None if there is none."""
        return self.refs.get(revision, revision if revision in self.commits else None)


class Hub(ThreadingHTTPServer):
    """Models by name, the objects of LFS, and what goes wrong."""

    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models, self.objects, self.asked = {}, {}, []
        self.token = "right"
        self.cut = {}  # how many of the next answers with a file, by its name, end half-way
        self.instead = {}  # what is sent in place of a file, by its name
        self.uploading = threading.Event()
        self.may_store = threading.Event()
        self.may_store.set()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, *_):
        """A client that was killed is no error."""


def etag(name, content):
    if name.endswith(LARGE):
        return hashlib.sha256(content).hexdigest()
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: Hub

    def log_message(self, *_):
        """Print nothing."""

    def _answer(self, body=b"", status=200, **headers):
        if not isinstance(body, bytes):
            body = json.dumps(body).encode()
            headers["Content-Type"] = "application/json"
        self.send_response(status)
        for name, value in {"Content_Length": len(body), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _refuse(self, status, code):
        self._answer({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

    def _may_write(self):
        return self.headers.get("Authorization") == f"Bearer {self.server.token}"

    def _model(self, name):
        """The model of a name that the client may read; None once it was refused."""
        model = self.server.models.get(name)
        if model is None or (model.private and not self._may_write()):
            self._refuse(401, "RepoNotFound")
        elif model.gated and not self._may_write():
            self._refuse(403, "GatedRepo")
        else:
            return model
        return None

    def _commit(self, model, revision):
        found = model.find(revision)
        if found is None:
            self._refuse(404, "RevisionNotFound")
        return found

    def do_HEAD(self):
        self.do_GET()

    def do_GET(self):
        parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
        self.server.asked.append((self.command, "/".join(parts)))
        match parts:
            case ["api", "models", owner, name, *rest]:
                self._about(f"{owner}/{name}", rest)
            case ["api", "datasets", owner, name, *rest]:
                self._about(f"datasets/{owner}/{name}", rest)
            case ["datasets", owner, name, "resolve", revision, *path]:
                self._file(f"datasets/{owner}/{name}", revision, "/".join(path))
            case [owner, name, "resolve", revision, *path]:
                self._file(f"{owner}/{name}", revision, "/".join(path))
            case _:
                self._refuse(404, "EntryNotFound")

    def _about(self, name, rest):
        if not (model := self._model(name)):
            return
        kind, revision = rest[:2] if rest else ("revision", "main")
        if not (commit := self._commit(model, revision)):
            return
        files = model.commits[commit]
        if kind == "tree":
            entries = [_entry(path, content) for path, content in files.items()]
            return self._answer(entries)
        named = [{"rfilename": path} for path in files]
        about = {"private": model.private, "siblings": named}
        return self._answer({"id": name, "sha": commit, **about})

    def _file(self, name, revision, path):
        if not (model := self._model(name)) or not (commit := self._commit(model, revision)):
            return
        files = model.commits[commit]
        if path not in files:
            return self._refuse(404, "EntryNotFound")
        known = etag(path, files[path])
        content = self.server.instead.get(path, files[path])
        headers = {"ETag": f'"{known}"', "X_Repo_Commit": commit, "Accept_Ranges": "bytes"}
        wanted = self.headers.get("Range", "")
        if self.command == "GET" and wanted.startswith("bytes="):
            first = int(wanted.removeprefix("bytes=").split("-")[0])
            headers["Content_Range"] = f"bytes {first}-{len(content) - 1}/{len(content)}"
            return self._answer(content[first:], 206, **headers)
        if self.command == "GET" and self.server.cut.get(path, 0) > 0:
            self.server.cut[path] -= 1
            self._answer(content[: len(content) // 2], **headers, Content_Length=len(content))
            self.close_connection = True
            return self.wfile.flush()
        return self._answer(content, **headers)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = unquote(urlsplit(self.path).path).strip("/")
        self.server.asked.append((self.command, path))
        if path == "api/validate-yaml":
            return self._answer({"errors": [], "warnings": []})
        if not self._may_write():
            return self._refuse(403, "Forbidden")
        match path.split("/"):
            case ["api", "repos", "create"]:
                self._create(json.loads(body))
            case ["api", "models", owner, name, action, *revision]:
                actions = {"branch": self._branch, "preupload": self._preupload}
                if model := self._model(f"{owner}/{name}"):
                    actions.get(action, self._change)(model, "/".join(revision), body)
            case [*_, "info", "lfs", "objects", "batch"]:
                self._batch(json.loads(body))
            case _:
                self._refuse(404, "EntryNotFound")

    def _create(self, asked):
        name = f"{asked['organization']}/{asked['name']}"
        status = 409 if name in self.server.models else 200
        private = asked.get("private") or asked.get("visibility") == "private"
        self.server.models.setdefault(name, Model(private=private))
        self._answer({"url": f"{self.server.url}/{name}"}, status)

    def _branch(self, model, branch, body):
        status = 409 if branch in model.refs else 200
        model.refs.setdefault(branch, model.refs["main"])
        self._answer({}, status)

    def _preupload(self, model, revision, body):
        def entry(file):
            mode = "lfs" if file["path"].endswith(LARGE) else "regular"
            return {"path": file["path"], "uploadMode": mode, "shouldIgnore": False}

        self._answer({"files": list(map(entry, json.loads(body)["files"]))})

    def _batch(self, asked):
        found = []
        for one in asked["objects"]:
            upload = {"href": f"{self.server.url}/objects/{one['oid']}", "header": {}}
            is_new = one["oid"] not in self.server.objects
            found.append({**one, **({"actions": {"upload": upload}} if is_new else {})})
        self._answer({"transfer": "basic", "objects": found})

    def do_PUT(self):
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                content += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        digest = self.path.rpartition("/")[2]
        assert hashlib.sha256(content).hexdigest() == digest
        self.server.asked.append((self.command, digest))
        self.server.uploading.set()
        self.server.may_store.wait(60)
        self.server.objects[digest] = content
        self._answer()

    def _change(self, model, revision, body):
        if not (before := self._commit(model, revision)):
            return
        files = dict(model.commits[before])
        for line in body.decode().splitlines():
            change = json.loads(line)
            value = change["value"]
            if change["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif change["key"] == "lfsFile":
                files[value["path"]] = self.server.objects[value["oid"]]
            elif change["key"] == "deletedFile":
                del files[value["path"]]
        made = model.commit(files, revision)
        name = urlsplit(self.path).path.removeprefix("/api/models/").partition("/commit/")[0]
        place = f"{self.server.url}/{name}/commit/{made}"
        self._answer({"commitUrl": place, "commitOid": made})


def _entry(path, content):
    found = {"type": "file", "path": path, "size": len(content), "oid": etag(path, content)}
    if path.endswith(LARGE):
        found["lfs"] = {"oid": found["oid"], "size": len(content), "pointerSize": 100}
    return found


@contextmanager
def serving(monkeypatch, cache):
    """A hub that huggingface_hub uses within the block, in this process, with an empty cache."""
    server = Hub()
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
    for name, value in {
        "ENDPOINT": server.url,
        "HUGGINGFACE_CO_URL_TEMPLATE": template,
        "HF_HUB_CACHE": str(cache),
        "HF_HUB_DISABLE_XET": True,
        "HF_HUB_OFFLINE": False,
        "HF_HUB_DISABLE_PROGRESS_BARS": True,
        "HF_TOKEN_PATH": str(cache / "no token"),
    }.items():
        monkeypatch.setattr(constants, name, value, raising=False)
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    monkeypatch.setenv("HF_TOKEN", server.token)
    yield server
    server.shutdown()
    server.server_close()
    thread.join()
