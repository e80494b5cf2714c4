"""One GET with a deadline; whatever comes of it is a :class:`Reply`, never an exception."""

from __future__ import annotations

import email.utils
import http.client
import json
import socket
import time
from email.message import Message
from urllib.parse import urlsplit

from sglang_pd.doctor.evidence import Reply
from sglang_pd.doctor.paths import OVER
from sglang_pd.doctor.tasks import Deadline, Task
from sglang_pd.errors import UserError

MOST_BYTES = 8 * 1024 * 1024
# What is said in time must not count as silence because the machine is busy.
SCHEDULING_S = 0.1


def check_url(flag: str, text: str) -> str:
    """``text`` as ``scheme://host:port``; raises :class:`UserError`."""
    allowed = "allowed: http://HOST:PORT or https://HOST:PORT, nothing after it"
    try:
        parts = urlsplit(text if "://" in text else f"http://{text}")
        port = parts.port
    except ValueError as error:
        raise UserError(f"{flag} {text!r} is no URL ({error}); {allowed}") from None
    rest = parts.path.rstrip("/") or parts.query or parts.fragment or parts.username or parts.password
    if parts.scheme not in ("http", "https") or not parts.hostname or rest:
        raise UserError(f"{flag} {text!r} is no URL of a server; {allowed}")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    return f"{parts.scheme}://{host}:{port or (443 if parts.scheme == 'https' else 80)}"


def get(url: str, path: str, deadline: Deadline, api_key: str | None = None) -> Reply:
    """``GET url + path``. The whole of it ends by the deadline, however slowly the answer comes."""
    if deadline.left <= SCHEDULING_S:
        return Reply(path, problem=OVER)
    start = time.monotonic()
    task = Task(_get, url, path, Deadline(deadline.left - SCHEDULING_S), api_key)
    try:
        return task.result(deadline)
    except TimeoutError:
        return Reply(path, None, _since(start), problem=f"no answer within {_since(start):.1f} s")


def _get(url: str, path: str, deadline: Deadline, api_key: str | None) -> Reply:
    parts = urlsplit(url)
    kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
    # Not urllib: a proxy in the environment must not come between.
    connection = kind(parts.hostname or "", parts.port, timeout=max(deadline.left, 0.001))
    start, sent_at = time.monotonic(), time.time()
    try:
        connection.connect()
    except TimeoutError:
        return Reply(path, None, _since(start), problem=f"no connection within {_since(start):.1f} s")
    except OSError as error:
        return Reply(path, None, _since(start), problem=_words(error))
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {api_key}"} if api_key else {})
        answer = connection.getresponse()
        skew = clock_difference(answer.headers, sent_at, time.time())
        content = answer.read(MOST_BYTES)
        return Reply(path, answer.status, _since(start), body_of(content, answer.headers), None, skew)
    except TimeoutError:
        return Reply(path, None, _since(start), problem=f"connected, but no answer within {_since(start):.1f} s")
    except (OSError, http.client.HTTPException) as error:
        return Reply(path, None, _since(start), problem=f"connected, but {_words(error)}")
    finally:
        connection.close()


def body_of(content: bytes, headers: Message) -> object:
    """JSON where it says that it is, else text."""
    text = content.decode(errors="replace")
    if "json" not in headers.get("Content-Type", ""):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


def clock_difference(headers: Message, sent_at: float, received_at: float) -> float | None:
    """The ``Date`` of an answer minus the clock here; 0 where the answer may have been given at that very second."""
    try:
        said = email.utils.parsedate_to_datetime(headers.get("Date") or "").timestamp()
    except (TypeError, ValueError):
        return None
    if sent_at - 1.0 <= said <= received_at:
        return 0.0
    return round(said - received_at if said > received_at else said + 1.0 - sent_at, 3)


def _since(start: float) -> float:
    return round(time.monotonic() - start, 3)


def _words(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, ConnectionResetError):
        return "the connection was reset"
    if isinstance(error, socket.gaierror):
        return f"the host name is not known: {error.strerror}"
    return f"{type(error).__name__}: {error}"
