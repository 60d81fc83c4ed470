"""Which registry a command asks, and the codecs of its schemas."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from tidelog.registry_http import path_segment

from tidelog_cli.connecting import connection
from tidelog_cli.failures import CommandFailed
from tidelog_cli.registry.registry_client import RegistryClient, RegistryFailed

if TYPE_CHECKING:
    from tidelog_core.schemas.model import SchemaType
    from tidelog_core.schemas.values.codecs import ValueCodec

USUAL_REGISTRY = "http://127.0.0.1:8081"
DEFAULT_REGISTRY = ""  # that of ``registry_client``
NOT_FOUND = frozenset({404, 40401, 40402, 40403})

Registry = Annotated[
    str,
    typer.Option(
        metavar="URL",
        envvar="TIDELOG_REGISTRY",
        help="The registry, such as https://user:password@node1:8081.",
        show_default=f"schema.registry.url of the context, or {USUAL_REGISTRY}",
    ),
]


def registry_client(url: str, ca_file: Path | None = None) -> RegistryClient:
    """Return a client of the registry, by default of the one that the settings name.

    Its login and authority are the settings' too, unless the URL has a login. Raises
    ``UsageError``, and ``InvalidConfig`` for the settings.
    """
    if url:
        return RegistryClient(url, ca_file)
    found = connection()
    trusted = found.get("ssl.truststore.location")
    if ca_file is None and trusted is not None:
        ca_file = Path(trusted)
    return RegistryClient(
        found.get("schema.registry.url") or USUAL_REGISTRY,
        ca_file,
        login=found.get("schema.registry.basic.auth.user.info") or "",
    )


class RegistryCodecs:
    """Codecs by the ids and guids of schemas. Each is asked for once."""

    def __init__(self, client: RegistryClient) -> None:
        self._client = client
        self._known: dict[int | str, tuple[SchemaType, ValueCodec] | str] = {}

    def of(self, schema_id: int | str) -> tuple[SchemaType, ValueCodec]:
        """Return the schema's type and its codec.

        Raises ``InvalidSchema`` if there is no such schema or no codec, and ``CommandFailed`` if
        the registry does not answer.
        """
        from tidelog_core.schemas.parsed_schema import InvalidSchema

        found = self._known.get(schema_id)
        if found is None:
            try:
                kind = "guids" if isinstance(schema_id, str) else "ids"
                found = self.made_of(self._client.get(f"/schemas/{kind}/{schema_id}"))
            except RegistryFailed as error:
                if error.code not in NOT_FOUND:
                    raise
                found = f"the registry has no schema {schema_id}"
            except InvalidSchema as error:
                found = f"schema {schema_id} cannot be used: {error}"
            self._known[schema_id] = found
        if isinstance(found, str):
            raise InvalidSchema(found)
        return found

    def made_of(self, answer: Mapping[str, Any]) -> tuple[SchemaType, ValueCodec]:
        """Return type and codec of a schema that the registry has answered with.

        Raises ``InvalidSchema`` and ``CommandFailed``.
        """
        from tidelog_core.schemas.model import SchemaType
        from tidelog_core.schemas.registry_answers import resolve_answer
        from tidelog_core.schemas.values.codecs import open_codec

        try:
            schema_type = SchemaType(answer.get("schemaType", SchemaType.AVRO))
            known = resolve_answer(answer, self._version)
            return schema_type, open_codec(schema_type, answer["schema"], known)
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            from tidelog_core.schemas.parsed_schema import InvalidSchema

            if isinstance(error, InvalidSchema):
                raise
            raise CommandFailed(f"the registry's answer has no schema: {error!r}") from None

    def _version(self, subject: str, version: int) -> Any:
        return self._client.get(
            f"/subjects/{path_segment(subject)}/versions/{version}", deleted="true"
        )
