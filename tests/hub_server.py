"""A small Hugging Face hub on this machine: repositories are made, filled by commits (LFS too), listed and read."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

from file_server import HTML

TOKEN = "hf_local"
Files = dict[str, bytes]


class HubServer:
    """Repositories by name; each commit is a whole set of files, under its hash."""

    def __init__(self) -> None:
        self.commits: dict[str, dict[str, Files]] = {}  # repository -> commit -> files, the newest last
        self.private: set[str] = set()
        self.stored: Files = {}  # LFS objects by SHA-256
        self.asked: list[tuple[str, str]] = []
        self.fault = ""  # "html", or the number of an error
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), handler_of(self))
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def close(self) -> None:
        self.http.shutdown()
        self.http.server_close()

    def newest(self, name: str) -> Files:
        return next(reversed(self.commits[name].values()), {})

    def commit(self, name: str, lines: list[dict[str, Any]]) -> str:
        files = dict(self.newest(name))
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.stored[value["oid"]]
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        digest = hashlib.sha1(repr((len(self.commits[name]), sorted(files))).encode()).hexdigest()
        self.commits[name][digest] = files
        return digest


def blob_id(content: bytes) -> str:
    """Git's name of a file."""
    return hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()


def handler_of(hub: HubServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None: ...

        def give(self, content: bytes | dict[str, Any] | list[Any], status: int = 200, **headers: str) -> None:
            body = content if isinstance(content, bytes) else json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            for key, value in headers.items():
                self.send_header(key.replace("_", "-"), value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def refuse(self, status: int, code: str) -> None:
            self.give({"error": code}, status, X_Error_Code=code, X_Error_Message=code)

        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            hub.asked.append((self.command, path))
            if self.is_faulty():
                return
            parts = path.strip("/").split("/")
            if parts[:2] == ["api", "models"]:
                name, rest = "/".join(parts[2:4]), parts[4:]
            else:
                name, rest = "/".join(parts[:2]), parts[2:]
            if name not in hub.commits or (name in hub.private and not self.is_known()):
                self.refuse(404 if self.is_known() else 401, "RepoNotFound")
                return
            commits = hub.commits[name]
            revision = rest[1] if len(rest) > 1 else "main"
            commit = next(reversed(commits), "") if revision == "main" else revision
            if commit not in commits:
                self.refuse(404, "RevisionNotFound")
                return
            files = commits[commit]
            if rest[:1] == ["tree"]:
                self.give([
                    {"type": "file", "path": key, "size": len(value), "oid": blob_id(value)}
                    for key, value in sorted(files.items())
                ])  # fmt: skip
            elif rest[:1] == ["resolve"]:
                content = files.get("/".join(rest[2:]))
                if content is None:
                    self.refuse(404, "EntryNotFound")
                else:
                    self.give(content, ETag=f'"{blob_id(content)}"', X_Repo_Commit=commit)
            else:
                siblings = [{"rfilename": key} for key in sorted(files)]
                about = {"id": name, "modelId": name, "sha": commit, "private": name in hub.private}
                self.give({**about, "siblings": siblings, "tags": []})

        def do_POST(self) -> None:
            path = unquote(urlsplit(self.path).path)
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            hub.asked.append(("POST", path))
            if self.is_faulty():
                return
            if not self.is_known():
                self.refuse(401, "Unauthorized")
                return
            if path == "/api/validate-yaml":  # the header of a model card
                self.give({"errors": [], "warnings": []})
            elif path == "/api/repos/create":
                asked = json.loads(body)
                name = f"{asked['organization']}/{asked['name']}"
                is_new = name not in hub.commits
                hub.commits.setdefault(name, {hashlib.sha1(name.encode()).hexdigest(): {}})
                if is_new and asked.get("visibility") == "private":
                    hub.private.add(name)
                self.give({"url": f"{hub.url}/{name}", "id": name}, 200 if is_new else 409)
            elif path.endswith("/preupload/main"):
                files = [one["path"] for one in json.loads(body)["files"]]
                modes = {one: "lfs" if PurePosixPath(one).suffix == ".safetensors" else "regular" for one in files}
                self.give({"files": [{"path": p, "uploadMode": m, "shouldIgnore": False} for p, m in modes.items()]})
            elif path.endswith(".git/info/lfs/objects/batch"):
                objects = [
                    {"oid": one["oid"], "size": one["size"],
                     "actions": {"upload": {"href": f"{hub.url}/lfs/{one['oid']}"}}}
                    for one in json.loads(body)["objects"]
                ]  # fmt: skip
                self.give({"transfer": "basic", "objects": objects})
            elif path.endswith("/commit/main"):
                name = "/".join(path.split("/")[3:5])
                commit = hub.commit(name, [json.loads(line) for line in body.splitlines() if line.strip()])
                self.give({"success": True, "commitUrl": f"{hub.url}/{name}/commit/{commit}", "commitOid": commit})
            else:
                self.give({}, 404)

        def do_PUT(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            oid = self.path.rpartition("/")[2]
            if hashlib.sha256(body).hexdigest() != oid:
                self.give({}, 400)
                return
            hub.stored[oid] = body
            self.give(b"")

        def is_known(self) -> bool:
            return self.headers.get("Authorization") == f"Bearer {TOKEN}"

        def is_faulty(self) -> bool:
            if hub.fault == "html":
                self.give(HTML, Content_Type="text/html")
            elif hub.fault:
                self.give({"error": "fault"}, int(hub.fault))
            return bool(hub.fault)

    return Handler
