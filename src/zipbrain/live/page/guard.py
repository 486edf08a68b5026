"""Access to the page: Host, Origin, token, sizes and rates, checked before anything else runs."""

from __future__ import annotations

import hmac
import ipaddress
import socket
import time
from collections import OrderedDict
from http.cookies import CookieError, SimpleCookie
from typing import Final
from urllib.parse import parse_qs

from starlette.datastructures import Headers, MutableHeaders
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

COOKIE: Final = "zipbrain_page"
LARGEST_BODY: Final = 2048  # bytes; a command has a hundred
LARGEST_HEADERS: Final = 8192  # bytes of names and values
MOST_HEADERS: Final = 64
LARGEST_TARGET: Final = 1024  # characters of path and query

_RATES: Final = {"read": (3000, 300.0), "command": (20, 2.0), "token": (10, 0.2)}  # of an address: burst, per second
_MOST_ADDRESSES: Final = 4096

HEADERS: Final = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    "Cache-Control": "no-store",
}


class Buckets:
    """Rates of requests: a token bucket per address; those unused for longest are forgotten."""

    def __init__(self) -> None:
        self._left: OrderedDict[tuple[str, str], tuple[float, float]] = OrderedDict()

    def take(self, address: str, what: str) -> bool:
        """False if this address sent too many requests."""
        burst, rate = _RATES[what]
        now = time.monotonic()
        left, before = self._left.pop((address, what), (float(burst), now))
        left = min(left + (now - before) * rate, burst)
        self._left[address, what] = (max(left - 1, 0.0), now)
        if len(self._left) > _MOST_ADDRESSES:
            self._left.popitem(last=False)
        return left >= 1


class Guard:
    """ASGI middleware that answers what is not allowed with 4xx, and gives every answer its headers.

    A name in Host is refused unless it is this machine's: a page of another origin can make a browser resolve any name
    to this address (DNS rebinding), but it can't make it send an address.

    Parameters
    ----------
    app : ASGI application
    token : str
        What every request must bring where the page is bound to another address than loopback; "" for none.
    """

    def __init__(self, app: ASGIApp, token: str = "") -> None:
        self.app, self.token, self.buckets = app, token, Buckets()
        self._own_names = {"localhost", socket.gethostname().lower()}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        refusal: Response | None = self._refusal(scope, headers)
        if refusal is None and self.token and not self._has_token(headers):
            refusal = self._admit(scope)
        if refusal is not None:
            refusal.headers["Connection"] = "close"  # what else this client has to send is not read
            refusal.headers.update(HEADERS)
            await refusal(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        await self.app(scope, receive, send_with_headers)

    def _refusal(self, scope: Scope, headers: Headers) -> PlainTextResponse | None:
        """The answer to what is not allowed, None for the rest."""
        is_socket = scope["type"] == "websocket"
        method = "GET" if is_socket else scope["method"]
        if not self.buckets.take(_address(scope), "read"):
            return PlainTextResponse("too many requests", 429)
        if len(scope["raw_path"]) + len(scope["query_string"]) > LARGEST_TARGET:
            return PlainTextResponse("the address is too long", 414)
        if (
            len(headers.raw) > MOST_HEADERS
            or sum(len(name) + len(value) for name, value in headers.raw) > LARGEST_HEADERS
        ):
            return PlainTextResponse("the headers are too long", 431)
        if method not in ("GET", "HEAD", "POST"):
            return PlainTextResponse("GET, HEAD and POST only", 405, {"Allow": "GET, HEAD, POST"})
        if not self._is_own(headers):
            return PlainTextResponse("this host name is not the page's", 403)
        origin, host = headers.get("origin"), headers["host"].lower()
        if origin is None and (is_socket or method == "POST"):
            return PlainTextResponse("a browser says its origin here", 403)
        if origin is not None and origin.lower() not in (f"http://{host}", f"https://{host}"):
            return PlainTextResponse("pages of other origins may not ask", 403)
        if headers.get("sec-fetch-site", "none") in ("cross-site", "same-site") and (is_socket or origin is not None):
            return PlainTextResponse("pages of other origins may not ask", 403)
        if not is_socket and "upgrade" in headers:
            return PlainTextResponse("no other protocol is spoken here", 400)
        refusal = _body_refusal(method, headers)
        if refusal is None and method == "POST" and not self.buckets.take(_address(scope), "command"):
            return PlainTextResponse("too many commands", 429)
        return refusal

    def _is_own(self, headers: Headers) -> bool:
        """True if Host is given once, as an address or a name of this machine."""
        hosts = headers.getlist("host")
        if len(hosts) != 1:
            return False
        host = hosts[0].lower()
        name, _, port = host.rpartition(":") if not host.endswith("]") else (host, "", "")
        name = name if port.isdigit() and name else host
        if name in self._own_names:
            return True
        try:
            ipaddress.ip_address(name[1:-1] if name.startswith("[") and name.endswith("]") else name)
        except ValueError:
            return False
        return True

    def _has_token(self, headers: Headers) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        if kind.lower() == "bearer" and _equal(given, self.token):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
        except CookieError:
            return False
        return cookie is not None and _equal(cookie.value, self.token)

    def _admit(self, scope: Scope) -> Response:
        """A cookie for a request with the token in its address, else 401."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if given and not self.buckets.take(_address(scope), "token"):
            return PlainTextResponse("too many requests", 429)
        if scope["type"] == "websocket" or scope["method"] != "GET" or not _equal(given, self.token):
            words = "This page needs a token: open the whole address that zipbrain printed."
            return PlainTextResponse(words, 401, {"WWW-Authenticate": "Bearer"})
        answer = RedirectResponse("/", 303)  # so that the token stays in no history
        answer.set_cookie(COOKIE, self.token, httponly=True, samesite="strict", max_age=30 * 86_400)
        return answer


def _body_refusal(method: str, headers: Headers) -> PlainTextResponse | None:
    length = headers.get("content-length", "0")
    has_body = "transfer-encoding" in headers or length.strip("0")
    if method != "POST":
        return PlainTextResponse("no body is read here", 413) if has_body else None
    if "transfer-encoding" in headers or not length.isdigit():
        return PlainTextResponse("say how long the body is", 411)
    return PlainTextResponse("the body is too long", 413) if int(length) > LARGEST_BODY else None


def _equal(given: str, token: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), token.encode())


def _address(scope: Scope) -> str:
    return scope["client"][0] if scope.get("client") else ""
