"""Schemas from a registry's REST API, with the standard library only."""

from __future__ import annotations

import base64
import json
import ssl
import urllib.error
import urllib.parse
import urllib.request
from http.client import HTTPException
from pathlib import Path
from typing import Any

from tidelog_core.schemas.model import SchemaType
from tidelog_core.schemas.registry_answers import resolve_answer

from tidelog.arrow.found_schemas import FoundSchema
from tidelog.errors import ConnectionFailed, InvalidConfig

SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 8 << 20
NOT_FOUND = 404


class RegistrySource:
    """A registry at a URL, which may have a user and a password. Its functions block."""

    def __init__(self, url: str, *, ca_file: Path | None = None) -> None:
        """Raises ``InvalidConfig``."""
        parts = urllib.parse.urlsplit(url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            shown = url.rpartition("@")[2]  # without a password
            raise InvalidConfig([f"a registry is a URL such as http://host:8081, not {shown!r}"])
        self._url = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"
        self._headers = {"Accept": "application/vnd.schemaregistry.v1+json"}
        if parts.username is not None:
            login = f"{urllib.parse.unquote(parts.username)}:"
            login += urllib.parse.unquote(parts.password or "")
            encoded = base64.b64encode(login.encode()).decode()
            self._headers["Authorization"] = f"Basic {encoded}"
        handlers: list[Any] = [urllib.request.ProxyHandler({}), _NoRedirects()]
        if parts.scheme == "https":
            context = ssl.create_default_context(cafile=ca_file)
            handlers.append(urllib.request.HTTPSHandler(context=context))
        self._opener = urllib.request.build_opener(*handlers)

    def latest(self, subject: str) -> FoundSchema:
        """Return the newest schema of a subject. Raises ``InvalidConfig``, ``ConnectionFailed``."""
        found = self._get(f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/latest")
        if found is None:
            raise InvalidConfig([f"the registry at {self._url} has no subject {subject!r}"])
        return self._made_of(found)

    def by_id(self, schema_id: int) -> FoundSchema | None:
        """Return the schema with the id, ``None`` if there is none. Raises ``ConnectionFailed``."""
        found = self._get(f"/schemas/ids/{schema_id}")
        return None if found is None else self._made_of(found)

    def _made_of(self, answer: Any) -> FoundSchema:
        try:
            known = resolve_answer(answer, self._version)
            schema_type = SchemaType(answer.get("schemaType", SchemaType.AVRO))
            return FoundSchema(schema_type, str(answer["schema"]), known)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise ConnectionFailed(f"{self._url} answers with no schema: {error!r}") from None

    def _version(self, subject: str, version: int) -> Any:
        found = self._get(
            f"/subjects/{urllib.parse.quote(subject, safe='')}/versions/{version}?deleted=true"
        )
        if found is None:
            raise ValueError(f"{subject} has no version {version}")
        return found

    def _get(self, path: str) -> Any:
        """Return an answer, ``None`` for what is not there. Raises ``ConnectionFailed``."""
        request = urllib.request.Request(self._url + path, headers=self._headers)
        try:
            with self._opener.open(request, timeout=SECONDS_MAX) as response:
                return json.loads(response.read(ANSWER_BYTES_MAX))
        except urllib.error.HTTPError as error:
            with error:
                if error.code == NOT_FOUND:
                    return None
                reason = error.read(1_000).decode(errors="replace")
            raise ConnectionFailed(
                f"the registry at {self._url} answers with HTTP status {error.code}: {reason}"
            ) from None
        except ValueError:
            raise ConnectionFailed(f"{self._url} is no schema registry: no JSON comes") from None
        except (urllib.error.URLError, HTTPException, TimeoutError, ConnectionError) as error:
            reason = str(getattr(error, "reason", None) or error)
            raise ConnectionFailed(f"no registry answers at {self._url}: {reason}") from None


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Makes a redirect an error: urllib would send the password on to the other host."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""
