"""A client of a schema registry's REST API, for commands."""

from __future__ import annotations

import json
import urllib.parse
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tidelog.registry_http import NoRegistry, NotRegistryUrl, RegistryAnswer, RegistryHttp

from tidelog_cli.failures import CommandFailed, UsageError

SECONDS_MAX = 60.0
ANSWER_BYTES_MAX = 64 << 20
START_HINT = "check its address; `tidelog up --registry-port 8081` starts one on this machine"


class RegistryFailed(CommandFailed):
    """The registry refuses; ``code`` is its error code, or the HTTP status."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class RegistryClient:
    """Sends requests to one registry. Each raises ``CommandFailed`` with what the registry says."""

    def __init__(self, url: str, ca_file: Path | None = None, *, login: str = "") -> None:
        """The URL may have a user and a password, else ``login`` counts, such as ``user:password``.

        Raises ``UsageError``.
        """
        try:
            self._http = RegistryHttp(
                url,
                ca_file=ca_file,
                login=login,
                seconds_max=SECONDS_MAX,
                answer_bytes_max=ANSWER_BYTES_MAX,
            )
        except NotRegistryUrl as error:
            raise UsageError(f"--registry must be {error}") from None

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
        path += f"?{urllib.parse.urlencode(query)}" if query else ""
        data = None if body is None else json.dumps(body).encode()
        try:
            answer = self._http.call(method, path, data)
        except NoRegistry as error:
            raise CommandFailed(f"{error}; {START_HINT}") from None
        if answer.is_refusal:
            raise _failure(answer)
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            problem = f"{self._http.url} is no schema registry: its answer is no JSON"
            raise CommandFailed(problem) from None


def _failure(answer: RegistryAnswer) -> RegistryFailed:
    """Return what the registry says, or the status."""
    try:
        found = json.loads(answer.body)
        code = int(found["error_code"])
        return RegistryFailed(f"{found['message']} (error {code})", code)
    except (ValueError, KeyError, TypeError):
        return RegistryFailed(
            f"the registry answers with HTTP status {answer.status}", answer.status
        )
