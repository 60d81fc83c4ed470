"""The records of the schema registry.

A context has a counter of ids. A schema of a context has its text under its id, and under its guid
the ids and subjects that use it. A subject has all of its versions in one item. So one commit
registers a schema: nothing can be half registered, an id is given out once, and ids have no gaps.

    context  -> the last id
    text     -> id: the schema
    identity -> guid: the id, and each subject and version that has the schema
    subject  -> its versions, and the schemas that refer to them
    settings -> of a subject, of a context, or of everything
    journal  -> the last entry of the bucket's journal that the others have
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any
from uuid import UUID

from tidelog_core.metadata.fields import Natural, Omitted, Positive, Stored, typed_rows
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey, JsonValue
from tidelog_core.schemas.model import Compatibility, Mode, Reference, Schema, SchemaType

SCHEMA_CONTEXT_COLLECTION = "schema-context"
SCHEMA_TEXT_COLLECTION_PREFIX = "schema-text:"
SCHEMA_IDENTITY_COLLECTION_PREFIX = "schema-identity:"
SCHEMA_SUBJECT_COLLECTION = "schema-subject"
SCHEMA_SETTINGS_COLLECTION = "schema-settings"
SCHEMA_JOURNAL_COLLECTION = "schema-journal"
LATER_CONTEXTS = "__LATER"  # no context's name: where those begin that are not there yet
EVERYTHING = "__GLOBAL"  # the scope of the settings that count where there are no others


@dataclass(frozen=True, slots=True, order=True)
class SubjectVersion:
    """A version of a subject."""

    version: int
    schema_id: int
    is_deleted: bool = False  # softly: it is found by those who ask for deleted versions


@dataclass(frozen=True, slots=True, order=True)
class SchemaUse:
    """A version of a subject that has the schema."""

    subject: str
    version: int
    schema_id: int  # imports may give one schema several ids


@dataclass(frozen=True, slots=True, order=True)
class Referrer:
    """A schema that refers to a version of the subject."""

    version: int
    context: str
    schema_id: int


@key_form
def schema_context_key(context: str) -> ItemKey:
    """Return the key of a context's counter."""
    return ItemKey(SCHEMA_CONTEXT_COLLECTION, f"{context}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaContext(Record):
    """The counter of ids of a context. It never counts down."""

    KEY = schema_context_key

    context: str
    last_id: Natural


@key_form
def schema_text_key(context: str, schema_id: int) -> ItemKey:
    """Return the key of a schema."""
    return ItemKey(f"{SCHEMA_TEXT_COLLECTION_PREFIX}{context}", f"{schema_id:010d}")


def _read_references(value: Any, _: Mapping[str, Any]) -> tuple[Reference, ...]:
    return tuple(Reference(*row) for row in typed_rows(value, str, str, int))


def _write_references(record: SchemaText) -> JsonValue:
    return [[one.name, one.subject, one.version] for one in record.references]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaText(Record):
    """A schema under its id. Written once; removed with the last version that has it."""

    KEY = schema_text_key

    context: str
    schema_id: Positive
    schema_type: SchemaType
    text: str
    references: Annotated[tuple[Reference, ...], Stored(_read_references, _write_references)] = ()
    metadata: Omitted[str] = ""
    rule_set: Omitted[str] = ""

    @property
    def schema(self) -> Schema:
        """The schema."""
        return Schema(self.schema_type, self.text, self.references, self.metadata, self.rule_set)


@key_form
def schema_identity_key(context: str, guid: str) -> ItemKey:
    """Return the key of a schema's identity."""
    return ItemKey(f"{SCHEMA_IDENTITY_COLLECTION_PREFIX}{context}", f"{guid}")


def _read_uses(value: Any, _: Mapping[str, Any]) -> tuple[SchemaUse, ...]:
    return tuple(SchemaUse(*row) for row in typed_rows(value, str, int, int))


def _write_uses(record: SchemaIdentity) -> JsonValue:
    return [[one.subject, one.version, one.schema_id] for one in record.uses]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaIdentity(Record):
    """The id of a schema, and the versions that have it. Removed with the last of them."""

    KEY = schema_identity_key

    context: str
    guid: str
    schema_id: Positive  # that further versions get
    uses: Annotated[tuple[SchemaUse, ...], Stored(_read_uses, _write_uses)] = ()  # sorted


@key_form
def schema_subject_key(subject: str) -> ItemKey:
    """Return the key of a subject."""
    return ItemKey(SCHEMA_SUBJECT_COLLECTION, f"{subject}")


def _read_versions(value: Any, _: Mapping[str, Any]) -> tuple[SubjectVersion, ...]:
    return tuple(SubjectVersion(*row) for row in typed_rows(value, int, int, bool))


def _write_versions(record: SchemaSubject) -> JsonValue:
    return [[one.version, one.schema_id, one.is_deleted] for one in record.versions]


def _read_referrers(value: Any, _: Mapping[str, Any]) -> tuple[Referrer, ...]:
    return tuple(Referrer(*row) for row in typed_rows(value, int, str, int))


def _write_referrers(record: SchemaSubject) -> JsonValue:
    return [[one.version, one.context, one.schema_id] for one in record.referrers]


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSubject(Record):
    """The versions of a subject. Removed with the last of them."""

    KEY = schema_subject_key

    subject: str  # with its context
    versions: Annotated[tuple[SubjectVersion, ...], Stored(_read_versions, _write_versions)] = ()
    referrers: Annotated[tuple[Referrer, ...], Stored(_read_referrers, _write_referrers)] = ()

    @property
    def live(self) -> tuple[SubjectVersion, ...]:
        """The versions that are not deleted, in their order."""
        return tuple(one for one in self.versions if not one.is_deleted)


@key_form
def schema_settings_key(scope: str) -> ItemKey:
    """Return the key of settings."""
    return ItemKey(SCHEMA_SETTINGS_COLLECTION, f"{scope}")


def _read_compatibility(value: Any, _: Mapping[str, Any]) -> Compatibility | None:
    return None if value is None else Compatibility(value)


def _write_compatibility(record: SchemaSettings) -> JsonValue:
    return None if record.compatibility is None else record.compatibility.value


def _read_mode(value: Any, _: Mapping[str, Any]) -> Mode | None:
    return None if value is None else Mode(value)


def _write_mode(record: SchemaSettings) -> JsonValue:
    return None if record.mode is None else record.mode.value


def _read_normalize(value: Any, _: Mapping[str, Any]) -> bool | None:
    if value is None or isinstance(value, bool):
        return value
    raise ValueError(f"{value!r} is not true, false or null")


def _write_normalize(record: SchemaSettings) -> JsonValue:
    return record.normalize


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaSettings(Record):
    """The settings of a subject, a context or everything. ``None``: those of the wider scope."""

    KEY = schema_settings_key

    scope: str  # a subject, a context such as ``:.staging:``, or ``EVERYTHING``
    compatibility: Annotated[
        Compatibility | None, Stored(_read_compatibility, _write_compatibility)
    ] = None
    mode: Annotated[Mode | None, Stored(_read_mode, _write_mode)] = None
    normalize: Annotated[bool | None, Stored(_read_normalize, _write_normalize)] = None
    compatibility_group: Omitted[str] = ""  # the property whose values make groups; "": none


@key_form
def schema_journal_key() -> ItemKey:
    """Return the key of the journal's position."""
    return ItemKey(SCHEMA_JOURNAL_COLLECTION, SCHEMA_JOURNAL_COLLECTION)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaJournal(Record):
    """The position in the bucket's journal. Every change of the registry moves it by one."""

    KEY = schema_journal_key

    store_id: UUID  # of this metadata store; another one that continues the journal has another
    sequence: Natural  # of the last entry whose writes are done, or that is void
    void_count: Natural  # entries that were never done
    is_whole: bool  # whether the journal has every item of the registry
