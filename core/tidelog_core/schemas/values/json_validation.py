"""Validates JSON by a JSON Schema, in time that grows with the text.

``jsonschema_rs`` does the work. Patterns are matched by an engine that does not backtrack, and
what a schema refers to comes from the registry alone, never from the network.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from typing import Any

from tidelog_core.schemas.model import Reference
from tidelog_core.schemas.parsed_schema import InvalidSchema
from tidelog_core.schemas.values.framing import UnreadableValue

BASE = "tidelog:///"  # of references without a scheme
MESSAGE_CHARACTERS_MAX = 300
NAMED_SECONDS_MAX = 0.01  # for a value whose problem is named
EXPRESSION_BYTES_MAX = 1 << 20  # of one compiled pattern


class JsonValidator:
    """Validates by one schema."""

    def __init__(self, text: str, known: Sequence[tuple[Reference, str]]) -> None:
        """``known`` is that of ``parse``. Raises ``InvalidSchema``."""
        try:
            import jsonschema_rs
        except ModuleNotFoundError:
            raise InvalidSchema(
                "JSON Schema needs a library: pip install 'tidelog[schemas]'"
            ) from None
        others = {reference.name: other for reference, other in known}

        def retrieve(address: str) -> Any:
            name = address.removeprefix(BASE)
            if name not in others:
                raise ValueError(f"{name[:100]!r} is none of the schema's references")
            return json.loads(others[name])

        document = json.loads(text)
        try:
            self._validator = jsonschema_rs.validator_for(
                document,
                base_uri=BASE,
                retriever=retrieve,
                pattern_options=jsonschema_rs.RegexOptions(size_limit=EXPRESSION_BYTES_MAX),
            )
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            raise InvalidSchema(f"values cannot be checked with it: {_short(error)}") from None
        self._wrong = jsonschema_rs.ValidationError

    def require(self, value: Any) -> None:
        """Raise ``UnreadableValue`` if the value is not valid.

        What is wrong is only looked for if it was soon known that something is: the search keeps
        all that it tried in memory.
        """
        try:
            before = time.thread_time()
            if self._validator.is_valid(value):
                return
            if time.thread_time() - before > NAMED_SECONDS_MAX:
                raise UnreadableValue("it does not fit the schema")
            self._validator.validate(value)
        except self._wrong as error:
            place = "/".join(str(one) for one in error.instance_path)[:100]
            at = f" at {place}" if place else ""
            raise UnreadableValue(f"it does not fit the schema{at}: {_short(error)}") from None
        except UnreadableValue:
            raise
        except (ValueError, OverflowError, RecursionError) as error:
            raise UnreadableValue(f"it cannot be checked: {_short(error)}") from None


def _short(error: Exception) -> str:
    text = getattr(error, "message", None) or str(error)
    return " ".join(text.split())[:MESSAGE_CHARACTERS_MAX]
