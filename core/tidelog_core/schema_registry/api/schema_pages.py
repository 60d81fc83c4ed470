"""Pages of versions with their schemas; unreadable ones are left out and logged.

Clients take a page that is shorter than its limit for the last one. So a page that leaves
something out goes on in the list until it is full. The next page begins at its own offset in the
list: it may repeat versions of the page before, but none is missed.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.schema_records import SchemaText, SubjectVersion
from tidelog_core.schema_registry.api.calls import Options
from tidelog_core.schema_registry.api.schema_answers import version_answer
from tidelog_core.schema_registry.api.unreadable_items import UnreadableItems
from tidelog_core.schema_registry.reading import TEXTS_AT_ONCE
from tidelog_core.schema_registry.registry import SchemaRegistry, StoredVersion
from tidelog_core.schemas.refusals import ReferenceNotFound, RegistryRefusal
from tidelog_core.schemas.subject_names import SubjectName

SCHEMAS_MAX = 1_000  # in one page, as in Confluent's registry; clients ask for further ones
PAGE_CHARACTERS_MAX = 32_000_000  # of all schemas in one page: 100 of full length
PAGE_TOO_LONG = f"more than {PAGE_CHARACTERS_MAX} characters in one answer: ask for a lower limit"

ListedVersion = tuple[str, SubjectVersion]  # the subject, and its version


class SchemaPages:
    """Reads pages. For the tasks of one event loop."""

    def __init__(self, registry: SchemaRegistry, unreadable: UnreadableItems) -> None:
        self._registry = registry
        self._unreadable = unreadable

    async def page(
        self, versions: Sequence[ListedVersion], options: Options
    ) -> list[dict[str, Any]]:
        """Return the page of the versions that ``offset`` and ``limit`` name.

        Raises ``RegistryRefusal`` if it is too long.
        """
        at, count_max = options.window(SCHEMAS_MAX)
        found: list[dict[str, Any]] = []
        character_count = 0
        while at < len(versions) and len(found) < count_max:
            some = versions[at : at + min(TEXTS_AT_ONCE, count_max - len(found))]
            at += len(some)
            for answered in await self._readable(some, options):
                character_count += len(answered["schema"])
                if character_count > PAGE_CHARACTERS_MAX:
                    raise RegistryRefusal(422, PAGE_TOO_LONG)
                found.append(answered)
        return found

    async def _readable(
        self, some: Sequence[ListedVersion], options: Options
    ) -> list[dict[str, Any]]:
        """Return those versions that can be read, as the API shows them."""
        texts = await self._texts(some)
        found = []
        for subject, one in some:
            text = texts.get((SubjectName.parse(subject).context, one.schema_id))
            try:
                if text is None:
                    await self._report_lost(subject, one)
                elif isinstance(text, CorruptItem):
                    self._unreadable.report(text)
                else:
                    stored = StoredVersion(
                        subject, one.version, one.schema_id, text.schema, one.is_deleted
                    )
                    found.append(await version_answer(self._registry, stored, options))
            except CorruptItem as error:  # of the version, or of a schema that it refers to
                self._unreadable.report(error)
            except ReferenceNotFound as refusal:
                self._unreadable.report_version(subject, one.version, refusal.reason)
        return found

    async def _texts(
        self, some: Sequence[ListedVersion]
    ) -> dict[tuple[str, int], SchemaText | CorruptItem]:
        """Return the schemas by context and id, in place of a malformed one the error."""
        wanted: defaultdict[str, set[int]] = defaultdict(set)
        for subject, one in some:
            wanted[SubjectName.parse(subject).context].add(one.schema_id)
        found: dict[tuple[str, int], SchemaText | CorruptItem] = {}
        for context, ids in wanted.items():
            texts = await self._registry.read.readable_texts(context, ids)
            found |= {(context, schema_id): text for schema_id, text in texts.items()}
        return found

    async def _report_lost(self, subject: str, one: SubjectVersion) -> None:
        """Report a version without a schema, unless it was removed since it was listed."""
        name = SubjectName.parse(subject)
        if one in (await self._registry.read.subject(name)).versions:
            reason = f"the metadata store has no schema {one.schema_id} of context {name.context}"
            self._unreadable.report_version(name.text, one.version, reason)
