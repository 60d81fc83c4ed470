"""The calls about schemas by their ids and guids."""

from __future__ import annotations

from typing import Any

from tidelog_core.metadata.schema_records import SchemaUse
from tidelog_core.schema_registry.api.calls import (
    Call,
    Handle,
    Options,
    Require,
    Right,
    forbidden,
    parse_id,
)
from tidelog_core.schema_registry.api.schema_answers import schema_answer
from tidelog_core.schema_registry.registry import SchemaRegistry
from tidelog_core.schemas.refusals import RegistryRefusal, schema_not_found
from tidelog_core.schemas.subject_names import SubjectName


class IdsApi:
    """Answers the calls about ids and guids. For the tasks of one event loop."""

    def __init__(self, registry: SchemaRegistry, require: Require) -> None:
        self._registry = registry
        self._require = require

    def routes(self) -> dict[tuple[str, ...], dict[str, Handle]]:
        """Return the handlers by path and method."""
        return {
            ("schemas", "ids", "*"): {"GET": self._by_id},
            ("schemas", "ids", "*", "schema"): {"GET": self._text_by_id},
            ("schemas", "ids", "*", "subjects"): {"GET": self._subjects_by_id},
            ("schemas", "ids", "*", "versions"): {"GET": self._versions_by_id},
            ("schemas", "guids", "*"): {"GET": self._by_guid},
            ("schemas", "guids", "*", "ids"): {"GET": self._ids_by_guid},
        }

    async def _by_id(self, call: Call, options: Options, path: list[str]) -> object:
        schema_id, subject = parse_id(path[2]), options.text("subject")
        schema = await self._registry.schema(schema_id, subject)
        await self._require_user(call, schema_id, subject)
        answered = {
            **await self._version_of(call, schema_id, subject),
            **await schema_answer(self._registry, subject, schema, options),
        }
        if options.is_set("fetchMaxId"):
            context = SubjectName.parse(subject).context
            answered["maxId"] = (await self._registry.read.context(context)).last_id
        return answered

    async def _version_of(self, call: Call, schema_id: int, subject: str) -> dict[str, Any]:
        """Return a version with the schema: the subject's, if there are several."""
        name = SubjectName.parse(subject)
        uses = await self._uses_of(schema_id, subject, with_deleted=False)
        is_deleted = not uses
        if is_deleted:
            uses = await self._uses_of(schema_id, subject, with_deleted=True)
        seen = [one for one in uses if call.permissions.sees(Right.READ, one.subject)]
        own = [one for one in seen if one.subject == name.text]
        for one in (own or seen)[-1:]:
            shown = {"subject": one.subject, "version": one.version}
            return {**shown, "deleted": True} if is_deleted else shown
        return {}

    async def _uses_of(
        self, schema_id: int, subject: str, *, with_deleted: bool
    ) -> list[SchemaUse]:
        try:
            return await self._registry.uses(schema_id, subject, with_deleted=with_deleted)
        except RegistryRefusal:
            return []  # It is in another context, or being removed.

    async def _text_by_id(self, call: Call, options: Options, path: list[str]) -> object:
        found: Any = await self._by_id(call, options, path)
        return found["schema"].encode(errors="replace")

    async def _subjects_by_id(self, call: Call, options: Options, path: list[str]) -> object:
        uses = await self._uses(call, options, path)
        return options.page(list(dict.fromkeys(one.subject for one in uses)))

    async def _versions_by_id(self, call: Call, options: Options, path: list[str]) -> object:
        uses = await self._uses(call, options, path)
        return options.page([{"subject": one.subject, "version": one.version} for one in uses])

    async def _uses(self, call: Call, options: Options, path: list[str]) -> list[SchemaUse]:
        found = await self._registry.uses(
            parse_id(path[2]), options.text("subject"), with_deleted=options.is_set("deleted")
        )
        return [one for one in found if call.permissions.sees(Right.READ, one.subject)]

    async def _require_user(self, call: Call, schema_id: int, subject: str) -> None:
        """Refuse a caller who may read none of the subjects that have the schema."""
        if call.permissions.sees(Right.READ, ""):
            return
        uses = await self._registry.uses(schema_id, subject, with_deleted=True)
        if not any(call.permissions.sees(Right.READ, one.subject) for one in uses):
            raise forbidden(Right.READ, f"the schema {schema_id}")

    async def _by_guid(self, call: Call, options: Options, path: list[str]) -> object:
        refusal = schema_not_found(path[2])
        for context, schema_id in await self._ids_of(path[2]):
            prefix = SubjectName(context, "").context_prefix
            try:
                schema = await self._registry.schema(schema_id, prefix)
                await self._require_user(call, schema_id, prefix)
            except RegistryRefusal as error:  # The caller may read it in another context.
                refusal = error
                continue
            return {
                **await self._version_of(call, schema_id, prefix),
                **await schema_answer(self._registry, prefix, schema, options),
            }
        raise refusal

    async def _ids_by_guid(self, call: Call, options: Options, path: list[str]) -> object:
        del options
        self._require(call, Right.READ, "")
        return [{"context": one, "id": found} for one, found in await self._ids_of(path[2])]

    async def _ids_of(self, guid: str) -> list[tuple[str, int]]:
        found = []
        for context in await self._registry.read.contexts():
            identity = await self._registry.read.identity(context, guid.lower() or "-")
            if identity is not None:  # Imports may have given it several ids.
                ids = [identity.schema_id, *(one.schema_id for one in identity.uses)]
                found += [(context, one) for one in dict.fromkeys(ids)]
        return found
