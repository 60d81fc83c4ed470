"""Requests to a schema registry's REST API, with the standard library only.

The URL may have a login. It is sent to that host only: urllib would send it on to the host of a
redirect, so a redirect is an error. Nothing of the SDK is imported here, because commands import
this for their help: callers map the two errors.
"""

from __future__ import annotations

import base64
import socket
import ssl
import threading
import urllib.error
import urllib.parse
import urllib.request
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path
from typing import Any, Self

from tidelog.blocking_dial import dial

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"


class NotRegistryUrl(ValueError):
    """The text is no URL of a registry. The message has no password."""


class NoRegistry(Exception):
    """No answer comes from the URL. The message names it, and the reason."""


@dataclass(frozen=True, slots=True)
class RegistryAnswer:
    """A registry's answer to one request."""

    status: int  # of HTTP
    body: bytes  # of an answer that is too long, only its beginning

    @property
    def is_refusal(self) -> bool:
        """Whether the registry has not done what was asked."""
        return not 200 <= self.status < 300


class RegistryHttp:
    """One registry. Its functions block."""

    def __init__(
        self,
        url: str,
        *,
        ca_file: Path | None = None,
        login: str = "",
        seconds_max: float,
        answer_bytes_max: int,
    ) -> None:
        """Without a login in the URL ``login`` counts, such as ``user:password``.

        Raises ``NotRegistryUrl``.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            shown = url.rpartition("@")[2]  # without a password
            raise NotRegistryUrl(f"a URL such as http://host:8081, not {shown!r}")
        address = parts.netloc.rpartition("@")[2]
        self.url = f"{parts.scheme}://{address}{parts.path.rstrip('/')}"  # without the login
        self._seconds_max = seconds_max
        self._answer_bytes_max = answer_bytes_max
        self._headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        if parts.username is not None:
            login = f"{urllib.parse.unquote(parts.username)}:"
            login += urllib.parse.unquote(parts.password or "")
        if login:
            encoded = base64.b64encode(login.encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        handlers: list[Any] = [urllib.request.ProxyHandler({}), _NoRedirects(), _PlainHandler()]
        if parts.scheme == "https":
            handlers.append(_TlsHandler(ssl.create_default_context(cafile=ca_file)))
        self._opener = urllib.request.build_opener(*handlers)

    def call(self, method: str, path: str, body: bytes | None = None) -> RegistryAnswer:
        """Return the answer. Raises ``NoRegistry`` if it has not come whole in ``seconds_max``."""
        reason = f"the answer is not complete after {self._seconds_max:g} s"
        with _Deadline(self._seconds_max) as deadline:
            try:
                request = _Request(self.url + path, body, self._headers, method=method)
                request.deadline = deadline
                try:
                    response = self._opener.open(request, timeout=self._seconds_max)
                except urllib.error.HTTPError as error:
                    response = error  # It has the answer too, and reading that may fail likewise.
                with response:
                    answer = RegistryAnswer(response.status, response.read(self._answer_bytes_max))
                if not deadline.is_over:
                    return answer
            # ``ValueError``: a host that no name service knows how to ask for.
            except (OSError, HTTPException, ValueError, OverflowError) as error:
                if not deadline.is_over:
                    reason = str(getattr(error, "reason", None) or error)
        raise NoRegistry(f"no registry answers at {self.url}: {reason}")


def path_segment(name: str) -> str:
    """Return a name as a part of a path."""
    return urllib.parse.quote(name, safe="")


class _Deadline:
    """Ends a call in time, however slowly its answer trickles in.

    The timeout of a socket begins again with every byte.
    """

    def __init__(self, seconds: float) -> None:
        self._socket: socket.socket | None = None
        self.is_over = False
        self._timer = threading.Timer(seconds, self._end)
        self._timer.daemon = True

    def __enter__(self) -> Self:
        """Begin."""
        self._timer.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop the timer."""
        self._timer.cancel()

    def note(self, connected: socket.socket) -> None:
        """Note the socket of the call."""
        self._socket = connected
        if self.is_over:
            self._end()

    def _end(self) -> None:
        self.is_over = True
        if self._socket is not None:
            with suppress(OSError):
                # ``SSLSocket.shutdown`` would send close_notify and wait.
                socket.socket.shutdown(self._socket, socket.SHUT_RDWR)


def _dialed(connection: HTTPConnection) -> socket.socket:
    assert connection.timeout is not None  # ``call`` gives one.
    return dial(connection.host, connection.port, timeout_s=connection.timeout)


class _PlainConnection(HTTPConnection):
    def __init__(self, *args: Any, deadline: _Deadline, **options: Any) -> None:
        super().__init__(*args, **options)
        self._deadline = deadline

    def connect(self) -> None:
        self.sock = _dialed(self)
        self._deadline.note(self.sock)  # urllib closes it, and goes on reading the answer.


class _TlsConnection(HTTPSConnection):
    def __init__(
        self, *args: Any, deadline: _Deadline, context: ssl.SSLContext, **options: Any
    ) -> None:
        super().__init__(*args, context=context, **options)
        self._deadline = deadline
        self._tls = context

    def connect(self) -> None:
        # It takes the place of the plain socket, which nothing can end from here on.
        wrapped = self._tls.wrap_socket(
            _dialed(self),
            server_hostname=self.host,
            do_handshake_on_connect=False,
        )
        self.sock = wrapped
        self._deadline.note(wrapped)
        wrapped.do_handshake()


class _Request(urllib.request.Request):
    deadline: _Deadline


class _PlainHandler(urllib.request.HTTPHandler):
    """Opens connections that end at their request's deadline."""

    def http_open(self, req: Any) -> Any:
        """Send the request."""
        return self.do_open(partial(_PlainConnection, deadline=req.deadline), req)


class _TlsHandler(urllib.request.HTTPSHandler):
    """As ``_PlainHandler``."""

    def __init__(self, context: ssl.SSLContext) -> None:
        super().__init__(context=context)
        self._tls = context

    def https_open(self, req: Any) -> Any:
        """Send the request."""
        made = partial(_TlsConnection, deadline=req.deadline)
        return self.do_open(made, req, context=self._tls)


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""
