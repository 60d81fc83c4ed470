"""Requests to a schema registry's REST API, with the standard library only.

The URL may have a login. It is sent to that host only: urllib would send it on to the host of a
redirect, so a redirect is an error. Nothing of the SDK is imported here, because commands import
this for their help: callers map the two errors.
"""

from __future__ import annotations

import base64
import ssl
import urllib.error
import urllib.parse
import urllib.request
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import Any

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
        handlers: list[Any] = [urllib.request.ProxyHandler({}), _NoRedirects()]
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=ca_file)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def call(self, method: str, path: str, body: bytes | None = None) -> RegistryAnswer:
        """Return the answer. Raises ``NoRegistry`` if there is none."""
        request = urllib.request.Request(self.url + path, body, self._headers, method=method)
        try:
            try:
                response = self._opener.open(request, timeout=self._seconds_max)
            except urllib.error.HTTPError as error:
                response = error  # It has the answer too, and reading that may fail likewise.
            with response:
                return RegistryAnswer(response.status, response.read(self._answer_bytes_max))
        except (OSError, HTTPException) as error:
            reason = str(getattr(error, "reason", None) or error)
            raise NoRegistry(f"no registry answers at {self.url}: {reason}") from None


def path_segment(name: str) -> str:
    """Return a name as a part of a path."""
    return urllib.parse.quote(name, safe="")


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""
