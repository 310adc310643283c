"""Who may come in to the recorder, the page they get, and what it may say.

Whoever knows the token, which is new with every start, gets the page; and nobody but this page may
play.  Names other than this machine's own are refused, for any name can be made to lead here.
"""

import http
import json
import secrets
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from bqfd_jax.demos.making.keys import KEYS
from bqfd_jax.demos.making.recording import SPEEDS

LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")  # of either end of a tunnel
_PAGE = Path(__file__).with_name("record.html")


def answer(request: Any, token: str) -> Any:
    """Answers a request: with the page, a refusal, or None for a player's connection."""
    host = _only(request.headers, "Host")
    # A foreign name that leads here would make its page one of ours.
    if host is None or _host_name(host) not in LOCAL_NAMES:
        return _refuse(http.HTTPStatus.FORBIDDEN, "This page is served to this machine only.")
    # Versions of websockets that do not tell the method accept no other.
    if getattr(request, "method", "GET") != "GET":
        return _refuse(http.HTTPStatus.METHOD_NOT_ALLOWED, "Only GET is answered.")
    try:
        url = urlsplit(request.path)
    except ValueError:
        return _refuse(http.HTTPStatus.BAD_REQUEST, "That is no address.")
    if url.path == "/favicon.ico":  # browsers ask for one with every refusal; it gives nothing away
        return _respond(http.HTTPStatus.OK, "", "image/x-icon")
    if url.path not in ("/", "/play"):
        return _refuse(http.HTTPStatus.NOT_FOUND, "There is no such page.")
    given = parse_qs(url.query).get("token", [])
    if len(given) != 1 or not _is_same(given[0], token):
        return _refuse(
            http.HTTPStatus.FORBIDDEN,
            "The token is missing or wrong: open the address that the command printed last.",
        )
    if url.path == "/":
        return _page(host)
    if _only(request.headers, "Origin") != f"http://{host}":
        return _refuse(http.HTTPStatus.FORBIDDEN, "Only the page served here may connect.")
    return None


def parse(text: str | bytes) -> tuple[str, Any]:
    """A message of the page, as (command, value); raises `ValueError` if there is no such thing."""
    if not isinstance(text, str):
        raise ValueError("it is not text")
    try:
        message = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError("it is not JSON") from error
    if not isinstance(message, dict) or not isinstance(message.get("type"), str):
        raise ValueError("it has no type")
    command, value = message["type"], message.get("value")
    if command in ("play", "pause", "undo", "restart", "save", "faster", "slower"):
        valid = value is None
    elif command == "keys":
        valid = isinstance(value, list) and all(key in KEYS for key in value)
        valid = valid and len(set(value)) == len(value)
    elif command == "speed":
        valid = type(value) in (int, float) and value in SPEEDS
    elif command == "seen":
        valid = type(value) is int and value >= 0
    else:
        raise ValueError("its type is unknown")
    if not valid or set(message) - {"type", "value"}:
        raise ValueError(f"{command} cannot have that value")
    return command, value


def _is_same(given: str, token: str) -> bool:
    # In a time that does not tell how much of it is right.
    return secrets.compare_digest(given.encode(errors="replace"), token.encode())


def _only(headers: Any, name: str) -> str | None:
    values = headers.get_all(name)
    return values[0] if len(values) == 1 else None


def _host_name(host: str) -> str | None:
    try:
        split = urlsplit(f"//{host}")
        _ = split.port  # is checked when it is asked for
    except ValueError:
        return None
    return split.hostname if split.netloc == host and "@" not in host else None


def _page(host: str) -> Any:
    nonce = secrets.token_urlsafe(16)
    body = _PAGE.read_text(encoding="utf-8").replace("NONCE", nonce)
    policy = (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        f"connect-src ws://{host}; img-src data:; base-uri 'none'; form-action 'none'; "
        "frame-ancestors 'none'"
    )
    return _respond(
        http.HTTPStatus.OK, body, "text/html; charset=utf-8", ("Content-Security-Policy", policy)
    )


def _refuse(status: http.HTTPStatus, text: str) -> Any:
    return _respond(status, f"{text}\n", "text/plain; charset=utf-8")


def _respond(status: http.HTTPStatus, text: str, kind: str, *more: tuple[str, str]) -> Any:
    from websockets.datastructures import Headers
    from websockets.http11 import Response

    body = text.encode()
    headers = Headers(
        [
            ("Content-Type", kind),
            ("Content-Length", str(len(body))),
            ("Connection", "close"),
            ("Cache-Control", "no-store"),
            ("Referrer-Policy", "no-referrer"),
            ("X-Content-Type-Options", "nosniff"),
            ("Cross-Origin-Opener-Policy", "same-origin"),
            ("Cross-Origin-Resource-Policy", "same-origin"),
            *more,
        ]
    )
    return Response(status.value, status.phrase, headers, body)
