# SPDX-License-Identifier: Apache-2.0
"""A Hub on this machine, of which huggingface_hub's own client can fetch models, and push to it."""

import base64
import hashlib
import json
import re
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

from huggingface_hub import constants
from serving import serving

COMMIT = "0123456789abcdef0123456789abcdef01234567"


class StubHub(ThreadingHTTPServer):
    """Serves directories as models.

    Attributes:
        models: Directories by the names of their models, at the branch main.
        home: Where the directory of a model is made that is pushed and not there.
        gated: Names whose files are not for us.
        instead: What is answered to everything, where that is not None: a code and a text.
        drops: Whether the connection is lost in the middle of weights.
        fetched: Names of the files that were asked for, in the order of asking.
    """

    def __init__(self, home):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.home = home
        self.models: dict[str, Path] = {}
        self.gated: set[str] = set()
        self.instead: tuple[int, bytes] | None = None
        self.drops = False
        self.fetched: list[str] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server: StubHub

    def do_GET(self):
        path = unquote(self.path.partition("?")[0])
        if self.server.instead is not None:
            return self._answer(*self.server.instead)
        if path == "/api/whoami-v2":
            self._answer(200, json.dumps({"name": "me", "orgs": []}).encode())
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/(revision|tree)/(.+)", path):
            self._about(*found.groups())
        elif found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/[^/]+/(.+)", path):
            self._file(*found.groups())
        elif found := re.fullmatch(r"/api/models/([^/]+/[^/]+)", path):
            self._about(found[1], "revision", "main")
        else:
            self._answer(404, b"{}")

    do_HEAD = do_GET

    def do_POST(self):
        data = self.rfile.read(int(self.headers["Content-Length"]))
        if self.server.instead is not None:
            return self._answer(*self.server.instead)
        if self.path == "/api/repos/create":
            given = json.loads(data)
            name = f"{given.get('organization') or 'me'}/{given['name']}"
            self.server.models.setdefault(name, self.server.home / name)
            answer = {"url": f"{self.server.url}/{name}", "name": name}
        elif self.path == "/api/validate-yaml":  # of a model card
            answer = {"errors": [], "warnings": []}
        elif found := re.fullmatch(r"/api/models/(.+)/(preupload|commit)/main", self.path):
            answer = getattr(self, f"_{found[2]}")(found[1], data)
        else:
            return self._answer(404, b"{}")
        return self._answer(200, json.dumps(answer).encode())

    def _preupload(self, name, data):
        """Every file comes within the commit, those that the real Hub puts elsewhere, too."""
        paths = [file["path"] for file in json.loads(data)["files"]]
        taken = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
        return {"files": [{"path": path} | taken for path in paths]}

    def _commit(self, name, data):
        home = self.server.models[name]
        for line in map(json.loads, data.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                assert value["encoding"] == "base64"
                (home / value["path"]).parent.mkdir(parents=True, exist_ok=True)
                (home / value["path"]).write_bytes(base64.b64decode(value["content"]))
            elif line["key"] == "deletedFile":
                (home / value["path"]).unlink()
        return {"success": True, "commitOid": COMMIT, "commitUrl": f"{self.server.url}/{name}"}

    def _about(self, name, what, revision):
        if name not in self.server.models:
            return self._answer(401, b"{}", **{"X-Error-Code": "RepoNotFound"})
        if revision not in ("main", COMMIT):
            return self._answer(404, b"{}", **{"X-Error-Code": "RevisionNotFound"})
        home = self.server.models[name]
        files = [path for path in sorted(home.rglob("*")) if path.is_file()]
        listed = [(str(path.relative_to(home)), path.stat().st_size) for path in files]
        if what == "tree":
            tree = [{"type": "file", "oid": "0" * 40, "path": n, "size": s} for n, s in listed]
            return self._answer(200, json.dumps(tree).encode())
        about = {"id": name, "sha": COMMIT, "siblings": []}
        about["siblings"] = [{"rfilename": n, "size": s, "blobId": "0" * 40} for n, s in listed]
        config = home / "config.json"
        about["config"] = json.loads(config.read_text()) if config.exists() else {}
        return self._answer(200, json.dumps(about).encode())

    def _file(self, name, file):
        if name in self.server.gated:
            return self._answer(403, b"{}", **{"X-Error-Code": "GatedRepo"})
        path = self.server.models[name] / file
        if not path.is_file():
            return self._answer(404, b"{}", **{"X-Error-Code": "EntryNotFound"})
        data = path.read_bytes()
        if self.command == "GET":
            self.server.fetched.append(file)
        etag = f'"{hashlib.sha1(data).hexdigest()}"'
        return self._answer(200, data, **{"ETag": etag, "X-Repo-Commit": COMMIT})

    def _answer(self, code, data, **headers):
        self.send_response(code)
        for key, value in headers.items():
            self.send_header(key, value)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            lost = self.server.drops and len(data) > 10_000
            self.wfile.write(data[: len(data) // 2] if lost else data)
            self.close_connection = lost

    def log_message(self, *arguments):
        pass


@contextmanager
def running(monkeypatch, cache):
    """A Hub while the block runs, which huggingface_hub takes for the Hub, and an empty cache."""
    with serving(StubHub(cache.parent / "pushed")) as hub:
        template = hub.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(constants, "ENDPOINT", hub.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        yield hub
