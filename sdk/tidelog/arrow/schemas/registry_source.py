"""Schemas from a registry's REST API."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tidelog_core.schemas.model import SchemaType
from tidelog_core.schemas.registry_answers import resolve_answer

from tidelog.arrow.schemas.found_schemas import FoundSchema
from tidelog.errors import ConnectionFailed, InvalidConfig
from tidelog.registry_http import NoRegistry, NotRegistryUrl, RegistryHttp, path_segment

SECONDS_MAX = 30.0
ANSWER_BYTES_MAX = 8 << 20
REASON_BYTES_MAX = 1_000  # of an error's answer
NOT_FOUND = 404


class RegistrySource:
    """A registry at a URL, which may have a user and a password. Its functions block."""

    def __init__(self, url: str, *, ca_file: Path | None = None) -> None:
        """Raises ``InvalidConfig``."""
        try:
            self._http = RegistryHttp(
                url, ca_file=ca_file, seconds_max=SECONDS_MAX, answer_bytes_max=ANSWER_BYTES_MAX
            )
        except NotRegistryUrl as error:
            raise InvalidConfig([f"a registry is {error}"]) from None

    def latest(self, subject: str) -> FoundSchema:
        """Return the newest schema of a subject. Raises ``InvalidConfig``, ``ConnectionFailed``."""
        found = self._get(f"/subjects/{path_segment(subject)}/versions/latest")
        if found is None:
            raise InvalidConfig([f"the registry at {self._http.url} has no subject {subject!r}"])
        return self._made_of(found)

    def by_id(self, schema_id: int) -> FoundSchema | None:
        """Return the schema with the id, ``None`` if there is none. Raises ``ConnectionFailed``."""
        found = self._get(f"/schemas/ids/{schema_id}")
        return None if found is None else self._made_of(found)

    def by_guid(self, guid: str) -> FoundSchema | None:
        """Return the schema with the guid, ``None``: there is none. Raises ``ConnectionFailed``."""
        found = self._get(f"/schemas/guids/{path_segment(guid)}")
        return None if found is None else self._made_of(found)

    def _made_of(self, answer: Any) -> FoundSchema:
        try:
            known = resolve_answer(answer, self._version)
            schema_type = SchemaType(answer.get("schemaType", SchemaType.AVRO))
            return FoundSchema(schema_type, str(answer["schema"]), known)
        except (KeyError, TypeError, ValueError, AttributeError, RecursionError) as error:
            raise ConnectionFailed(f"{self._http.url} answers with no schema: {error!r}") from None

    def _version(self, subject: str, version: int) -> Any:
        found = self._get(f"/subjects/{path_segment(subject)}/versions/{version}?deleted=true")
        if found is None:
            raise ValueError(f"{subject} has no version {version}")
        return found

    def _get(self, path: str) -> Any:
        """Return an answer, ``None`` for what is not there. Raises ``ConnectionFailed``."""
        try:
            answer = self._http.call("GET", path)
        except NoRegistry as error:
            raise ConnectionFailed(str(error)) from None
        if answer.status == NOT_FOUND:
            return None
        if answer.is_refusal:
            reason = answer.body[:REASON_BYTES_MAX].decode(errors="replace")
            raise ConnectionFailed(
                f"the registry at {self._http.url} answers with HTTP status {answer.status}: "
                f"{reason}"
            )
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError):
            problem = f"{self._http.url} is no schema registry: no JSON comes"
            raise ConnectionFailed(problem) from None
