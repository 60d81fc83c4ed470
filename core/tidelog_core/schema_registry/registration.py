"""Decides a registration: one commit from one reading.

Every write expects the version that was read, so a decision from an old reading conflicts, and is
made again from a new one. What can happen between the two, and which condition meets it:

- *another schema gets the next id*: the context's item
- *the same schema gets an id*: its identity
- *the subject gets a version, or loses one*: the subject's item
- *a version that the schema refers to is deleted*: the item of that subject, which every
  registration of a referrer writes
- *the mode or the level changes*: checks on the settings of all scopes
- *an item is removed and written again, so that it has its first version once more*: the context's
  item, which every permanent deletion writes, and every other commit writes or checks

Source: ``register`` of Confluent's ``KafkaSchemaRegistry``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from tidelog_core.metadata.records import put
from tidelog_core.metadata.schema_records import (
    Referrer,
    SchemaContext,
    SchemaIdentity,
    SchemaSubject,
    SchemaText,
    SchemaUse,
    SubjectVersion,
)
from tidelog_core.metadata.store import Write
from tidelog_core.schemas.model import (
    GIVEN_MAX,
    ID_MAX,
    REFERRERS_MAX,
    USES_MAX,
    VERSIONS_MAX,
    Mode,
    Schema,
)
from tidelog_core.schemas.refusals import (
    given_too_high,
    invalid_schema,
    not_permitted,
    schema_too_large,
)
from tidelog_core.schemas.subject_names import SubjectName

ANY_ID, NEXT_VERSION = -1, 0


@dataclass(frozen=True, slots=True)
class Reading:
    """What a registration is decided from. Records that were not stored have version 0."""

    name: SubjectName
    schema: Schema
    subject: SchemaSubject
    identity: SchemaIdentity
    texts: Mapping[int, SchemaText]  # those of the ids that the identity or the client names
    context: SchemaContext
    referenced: Mapping[str, SchemaSubject]  # by name, of the schema's own references
    mode: Mode
    schema_id: int = ANY_ID  # that an import gives
    version: int = NEXT_VERSION  # that the client wants


@dataclass(frozen=True, slots=True)
class Decision:
    """The version and the id of a schema, and the writes that store them."""

    version: int
    schema_id: int
    writes: tuple[Write, ...] = ()  # empty: it is registered already


def require_mode(name: SubjectName, mode: Mode, schema_id: int) -> None:
    """Raise ``RegistryRefusal`` unless schemas may be registered, with an id if one is given."""
    start = f"Subject {name.text} in context {name.context_prefix}"
    if mode in (Mode.READONLY, Mode.READONLY_OVERRIDE):
        raise not_permitted(f"{start} is in read-only mode")
    if schema_id >= 0 and mode is not Mode.IMPORT:
        raise not_permitted(f"{start} is not in import mode")
    if schema_id < 0 and mode is not Mode.READWRITE:
        raise not_permitted(f"{start} is not in read-write mode")


def registered(reading: Reading) -> Decision | None:
    """Return the version that has the schema already, if the client wants no other.

    Raises ``RegistryRefusal`` if another schema has its guid.
    """
    _require_same(reading)
    if reading.version != NEXT_VERSION:
        return None
    for one in reversed(reading.subject.live):
        is_wanted = reading.schema_id in (ANY_ID, one.schema_id)
        use = SchemaUse(reading.name.text, one.version, one.schema_id)
        if is_wanted and use in reading.identity.uses:
            return Decision(one.version, one.schema_id)
    return None


def mended(reading: Reading) -> Decision | None:
    """Return the writes of the text that a registered version has lost; ``None``: it has one."""
    found = registered(reading)
    if found is None or found.schema_id in reading.texts:
        return None
    text = _text(reading, found.schema_id)
    return replace(found, writes=(put(text, is_logged=False),))


def decide(reading: Reading) -> Decision:
    """Return the registration of a schema that is not registered. Raises ``RegistryRefusal``."""
    _require_same(reading)
    schema_id = _id_for(reading)
    subject, version = _with_version(reading, schema_id)
    identity = _with_use(reading, subject, SchemaUse(reading.name.text, version, schema_id))
    changed = {reading.name.text: subject}
    context_name = reading.name.context
    for one in reading.schema.references:
        name = reading.name.reference(one.subject).text
        before = changed.get(name) or reading.referenced[name]
        if all(known.version != one.version for known in before.live):
            raise invalid_schema(f"{one.subject} has no version {one.version} to refer to")
        changed[name] = _with_referrer(before, Referrer(one.version, context_name, schema_id))
    writes = [put(one, is_logged=False) for one in changed.values()]
    writes.append(put(identity, is_logged=False))
    if schema_id not in reading.texts:
        counter = max(reading.context.last_id, schema_id)
        writes.append(put(replace(reading.context, last_id=counter), is_logged=False))
        writes.append(put(_text(reading, schema_id), is_logged=False))
    return Decision(version, schema_id, tuple(writes))


def _text(reading: Reading, schema_id: int) -> SchemaText:
    """Return the schema under an id that has no text."""
    schema = reading.schema
    return SchemaText(
        context=reading.name.context,
        schema_id=schema_id,
        schema_type=schema.schema_type,
        text=schema.text,
        references=schema.references,
        metadata=schema.metadata,
        rule_set=schema.rule_set,
    )


def _require_same(reading: Reading) -> None:
    found = reading.texts.get(reading.identity.schema_id) if reading.identity.uses else None
    if found is not None and found.schema != reading.schema:
        raise not_permitted(
            "another schema has the same MD5: change a comment, a doc or the order of properties"
        )


def _id_for(reading: Reading) -> int:
    if reading.schema_id >= 0:
        if not 1 <= reading.schema_id <= GIVEN_MAX:
            raise given_too_high("id", reading.schema_id)
        found = reading.texts.get(reading.schema_id)
        if found is not None and found.schema != reading.schema:
            raise not_permitted(
                f"Overwrite new schema with id {reading.schema_id} in context"
                f" {reading.name.context_prefix} is not permitted."
            )
        return reading.schema_id
    if reading.identity.uses:
        return reading.identity.schema_id
    if reading.context.last_id >= ID_MAX:
        raise schema_too_large(f"the context has given out all ids up to {ID_MAX}")
    return reading.context.last_id + 1


def _with_version(reading: Reading, schema_id: int) -> tuple[SchemaSubject, int]:
    """Return the subject with the schema's version, and the version."""
    subject = reading.subject
    following = max((one.version for one in subject.versions), default=0) + 1
    version = reading.version or following
    if version != following and version > GIVEN_MAX:
        raise given_too_high("version", version)
    if version > ID_MAX:
        raise schema_too_large(f"versions go up to {ID_MAX}")
    if version != following and reading.mode is not Mode.IMPORT:
        raise invalid_schema("Version is not one more than previous version")
    if any(one.version == version and one.schema_id != schema_id for one in subject.versions):
        raise not_permitted(f"version {version} of {subject.subject} has another schema")
    kept = [
        one
        for one in subject.versions
        if one.version != version and not _is_replaced(one, schema_id, subject, version)
    ]
    if len(kept) >= VERSIONS_MAX:
        raise schema_too_large(f"{subject.subject} has {len(kept)} versions: delete some")
    made = SubjectVersion(version, schema_id)
    return replace(subject, versions=tuple(sorted([*kept, made]))), version


def _is_replaced(one: SubjectVersion, schema_id: int, subject: SchemaSubject, version: int) -> bool:
    """Whether a deleted version goes because its schema has a newer one, and nobody needs it."""
    is_same = one.is_deleted and one.schema_id == schema_id and one.version < version
    return is_same and all(known.version != one.version for known in subject.referrers)


def _with_use(reading: Reading, subject: SchemaSubject, use: SchemaUse) -> SchemaIdentity:
    """Return the identity with the new use, and without those of versions that were replaced."""
    left = {one.version for one in subject.versions}
    uses = {
        one
        for one in reading.identity.uses
        if one.subject != reading.name.text or one.version in left
    }
    if len(uses) >= USES_MAX:
        raise schema_too_large(f"{len(uses)} versions have this schema already, and no more may")
    uses.add(use)
    first = reading.identity.schema_id if reading.identity.uses else use.schema_id
    return replace(reading.identity, schema_id=first, uses=tuple(sorted(uses)))


def _with_referrer(subject: SchemaSubject, referrer: Referrer) -> SchemaSubject:
    if referrer in subject.referrers:
        return subject
    if len(subject.referrers) >= REFERRERS_MAX:
        raise schema_too_large(f"{REFERRERS_MAX} schemas refer to {subject.subject} already")
    return replace(subject, referrers=tuple(sorted([*subject.referrers, referrer])))
