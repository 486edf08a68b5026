"""A real HTTP server on this machine that breaks off, lies, stalls and redirects, for tests of downloads."""

from __future__ import annotations

import contextlib
import hashlib
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, unquote, urlsplit

HTML = b"<!DOCTYPE html>\n<html><body>Log in to the network of this hospital</body></html>"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"0" * 64 + b"\nsize 23000000\n"


class Server:
    """Files under /mat (PhysioNet) and /openneuro.org/ds005178 (S3); `faults` maps a path to the answers it gives next.

    The last answer of a list stays; a path without faults is served as it should be.
    """

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.faults: dict[str, list[str]] = {}
        self.asked: list[tuple[str, str | None]] = []  # path, Range
        self.busy = self.most = 0  # slow answers under way
        self.lock = threading.Lock()
        self.pieces: set[str] = set()  # S3 objects that were uploaded in pieces
        self.lies = {"html": HTML, "lfs pointer": POINTER}  # what comes in place of a file
        self.http = ThreadingHTTPServer(("127.0.0.1", 0), self.handler())
        self.http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self.http.server_port}"
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()

    def put(self, path: str, content: bytes) -> None:
        self.files[path] = content

    def sums(self, root: str) -> None:
        """Write SHA256SUMS.txt in PhysioNet's manner: one space, no order."""
        inside = {path.removeprefix(f"{root}/"): value for path, value in self.files.items() if path.startswith(root)}
        lines = [f"{hashlib.sha256(value).hexdigest()} {path}" for path, value in inside.items() if "SHA" not in path]
        self.put(f"{root}/SHA256SUMS.txt", "\n".join(reversed(lines)).encode() + b"\n")

    def requests(self, name: str) -> list[str | None]:
        return [asked for path, asked in self.asked if path.endswith(name)]

    def listing(self, query: dict[str, list[str]]) -> bytes:
        keys = sorted(path.removeprefix("/openneuro.org/") for path in self.files if path.startswith("/openneuro.org/"))
        keys = [key for key in keys if key.startswith(query["prefix"][0])]
        start = int(query.get("continuation-token", ["0"])[0])
        rows = ""
        for key in keys[start : start + 2]:
            value = self.files[f"/openneuro.org/{key}"]
            etag = hashlib.md5(value).hexdigest() + ("-2" if key in self.pieces else "")
            rows += f"<Contents><Key>{key}</Key><ETag>&quot;{etag}&quot;</ETag><Size>{len(value)}</Size></Contents>"
        more = start + 2 < len(keys)
        rows += f"<IsTruncated>{str(more).lower()}</IsTruncated>"
        rows += f"<NextContinuationToken>{start + 2}</NextContinuationToken>" if more else ""
        return f'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">{rows}</ListBucketResult>'.encode()

    def handler(self) -> type[BaseHTTPRequestHandler]:
        server = self

        class Handler(BaseHTTPRequestHandler):
            def log_message(self, *_: object) -> None: ...

            def do_GET(self) -> None:
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    self.answer()

            def answer(self) -> None:
                address = urlsplit(self.path)
                path, asked = unquote(address.path), self.headers.get("Range")
                with server.lock:
                    server.asked.append((path, asked))
                    faults = server.faults.get(path, [""])
                    fault = faults.pop(0) if len(faults) > 1 else faults[0]
                if fault.isdigit():
                    self.send_response(int(fault))
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                if fault == "redirect":
                    self.send_response(302)
                    self.send_header("Location", f"{server.url}{path}?again")
                    self.send_header("Content-Length", "0")
                    self.end_headers()
                    return
                content = server.files.get(path)
                if path == "/openneuro.org":
                    content = server.listing(parse_qs(address.query))
                if content is None:
                    self.send_error(404)
                    return
                start = int(asked.removeprefix("bytes=").rstrip("-")) if asked and fault != "ignores range" else 0
                if start >= len(content) > 0:
                    self.send_error(416)
                    return
                content = server.lies.get(fault, content)
                body = content[start:]
                if fault == "is cut short":
                    body = body[:-100]
                if fault == "another of this size":
                    body = bytes(len(body))
                if fault == "flips a byte":
                    body = body[:-1] + bytes([body[-1] ^ 1])
                self.send_response(206 if start else 200)
                if start:
                    begin = start + 7 if fault == "another range" else start
                    self.send_header("Content-Range", f"bytes {begin}-{len(content) - 1}/{len(content)}")
                claimed = {"claims less": len(body) // 2, "claims more": len(body) + 99}.get(fault, len(body))
                if fault == "sends more":
                    body += b"more"
                    claimed = len(body)
                self.send_header("Content-Length", str(claimed))
                self.end_headers()
                if fault in ("breaks off", "ignores range, breaks off"):
                    body = body[: len(body) // 2]
                if fault == "stalls":
                    self.wfile.write(body[:1000])
                    self.wfile.flush()
                    time.sleep(1.0)
                    return
                if fault == "slow":
                    self.trickle(body)
                    return
                self.wfile.write(body[:claimed])

            def trickle(self, body: bytes) -> None:
                with server.lock:
                    server.busy += 1
                    server.most = max(server.most, server.busy)
                step = -(-len(body) // 10)
                for i in range(0, len(body), step):
                    time.sleep(0.03)
                    if i + step >= len(body):  # before the client can know that it has all
                        with server.lock:
                            server.busy -= 1
                    self.wfile.write(body[i : i + step])
                    self.wfile.flush()

        return Handler
