"""A client of a schema registry's REST API, with the standard library only."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tidelog_cli.failures import CommandFailed, UsageError

CONTENT_TYPE = "application/vnd.schemaregistry.v1+json"
SECONDS_MAX = 60.0
ANSWER_BYTES_MAX = 64 << 20
START_HINT = "check its address; `tidelog up --registry-port 8081` starts one on this machine"


class RegistryFailed(CommandFailed):
    """The registry refuses; ``code`` is its error code, or the HTTP status."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def segment(name: str) -> str:
    """Return a name as a part of a path."""
    return urllib.parse.quote(name, safe="")


class RegistryClient:
    """Sends requests to one registry. Each raises ``CommandFailed`` with what the registry says."""

    def __init__(self, url: str, ca_file: Path | None = None, *, login: str = "") -> None:
        """The URL may have a user and a password, else ``login`` counts, such as ``user:password``.

        Raises ``UsageError``.
        """
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            shown = url.rpartition("@")[2]  # without a password
            raise UsageError(f"--registry must be a URL such as http://host:8081, not {shown!r}")
        address = parts.netloc.rpartition("@")[2]
        self._url = f"{parts.scheme}://{address}{parts.path.rstrip('/')}"
        self._headers = {"Accept": CONTENT_TYPE, "Content-Type": CONTENT_TYPE}
        if parts.username is not None:
            login = f"{urllib.parse.unquote(parts.username)}:"
            login += urllib.parse.unquote(parts.password or "")
        if login:
            encoded = base64.b64encode(login.encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        self._tls = ssl.create_default_context(cafile=ca_file) if parts.scheme == "https" else None

    def get(self, path: str, **query: str) -> Any:
        """Return the answer to GET."""
        return self._call("GET", path, query)

    def post(self, path: str, body: object, **query: str) -> Any:
        """Return the answer to POST."""
        return self._call("POST", path, query, body)

    def put(self, path: str, body: object, **query: str) -> Any:
        """Return the answer to PUT."""
        return self._call("PUT", path, query, body)

    def delete(self, path: str, **query: str) -> Any:
        """Return the answer to DELETE."""
        return self._call("DELETE", path, query)

    def _call(self, method: str, path: str, query: Mapping[str, str], body: object = None) -> Any:
        url = self._url + path + (f"?{urllib.parse.urlencode(query)}" if query else "")
        data = None if body is None else json.dumps(body).encode()
        request = urllib.request.Request(url, data, self._headers, method=method)
        handlers: list[Any] = [urllib.request.ProxyHandler({}), _NoRedirects()]
        if self._tls is not None:
            handlers.append(urllib.request.HTTPSHandler(context=self._tls))
        opener = urllib.request.build_opener(*handlers)
        try:
            with opener.open(request, timeout=SECONDS_MAX) as response:
                return _parsed(response.read(ANSWER_BYTES_MAX), self._url)
        except urllib.error.HTTPError as error:
            with error:
                raise _failure(error) from None
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            reason = getattr(error, "reason", None) or error
            message = f"no registry answers at {self._url}: {reason}; {START_HINT}"
            raise CommandFailed(message) from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: urllib would send the password on to the other host."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


def _parsed(data: bytes, url: str) -> Any:
    try:
        return json.loads(data)
    except ValueError:
        raise CommandFailed(f"{url} is no schema registry: its answer is no JSON") from None


def _failure(error: urllib.error.HTTPError) -> RegistryFailed:
    """Return what the registry says, or the status."""
    try:
        found = json.loads(error.read(ANSWER_BYTES_MAX))
        code = int(found["error_code"])
        return RegistryFailed(f"{found['message']} (error {code})", code)
    except (ValueError, KeyError, TypeError):
        message = f"the registry answers with HTTP status {error.code}"
        return RegistryFailed(message, error.code)
