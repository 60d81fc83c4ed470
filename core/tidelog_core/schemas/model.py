"""Values of the schema registry, and its limits.

Source of names and meanings: Confluent's Schema Registry REST API.
"""

from __future__ import annotations

import hashlib
import json
import struct
from dataclasses import dataclass
from enum import StrEnum
from uuid import UUID

ID_MAX = 2**31 - 1  # of schemas and versions: both are an int of 32 bits in clients
# The greatest id or version that a client may give. 16 million greater ones are left.
GIVEN_MAX = ID_MAX - 2**24
SCHEMA_CHARACTERS_MAX = 300_000
SUBJECT_BYTES_MAX = 400  # a key of the metadata store holds it, and a context before it
REFERENCES_MAX = 30  # of one schema: each is a write of one commit
RESOLVED_MAX = 200  # schemas that one schema refers to, through others too
RESOLVED_CHARACTERS_MAX = 2_000_000  # of all their texts
VERSIONS_MAX = 5_000  # of one subject
USES_MAX = 3_000  # subjects that have one schema
REFERRERS_MAX = 5_000  # schemas that refer to versions of one subject
EXTRAS_CHARACTERS_MAX = 20_000  # of metadata, and of a rule set


class SchemaType(StrEnum):
    """The languages of schemas."""

    AVRO = "AVRO"
    JSON = "JSON"
    PROTOBUF = "PROTOBUF"


class Compatibility(StrEnum):
    """Which older versions a new version has to be compatible with, and how."""

    NONE = "NONE"
    BACKWARD = "BACKWARD"  # the new schema reads data of the latest
    BACKWARD_TRANSITIVE = "BACKWARD_TRANSITIVE"  # of all
    FORWARD = "FORWARD"  # the latest reads data of the new schema
    FORWARD_TRANSITIVE = "FORWARD_TRANSITIVE"  # all do
    FULL = "FULL"  # both
    FULL_TRANSITIVE = "FULL_TRANSITIVE"

    @property
    def is_transitive(self) -> bool:
        """Whether all older versions count."""
        return self.name.endswith("_TRANSITIVE")

    @property
    def new_reads_old(self) -> bool:
        """Whether the new schema must read data of older ones."""
        return self.name.startswith(("BACKWARD", "FULL"))

    @property
    def old_reads_new(self) -> bool:
        """Whether older schemas must read data of the new one."""
        return self.name.startswith(("FORWARD", "FULL"))


DEFAULT_COMPATIBILITY = Compatibility.BACKWARD


class Mode(StrEnum):
    """The kinds of changes that a registry or a subject accepts."""

    READWRITE = "READWRITE"
    READONLY = "READONLY"
    READONLY_OVERRIDE = "READONLY_OVERRIDE"  # also where a subject has another mode
    IMPORT = "IMPORT"  # schemas with given ids and versions


@dataclass(frozen=True, slots=True, order=True)
class Reference:
    """A schema that another one uses, by the name that the other one has for it."""

    name: str
    subject: str
    version: int


@dataclass(frozen=True, slots=True)
class Schema:
    """A schema with all that makes it another one. Equal schemas have one id in a context."""

    schema_type: SchemaType
    text: str
    references: tuple[Reference, ...] = ()
    metadata: str = ""  # JSON, as it was sent and compact; "": none
    rule_set: str = ""

    @property
    def guid(self) -> str:
        """The name of the schema in every registry.

        Two schemas with one name are possible: MD5 has collisions that can be made. Source:
        ``updateHash`` and ``getGuid`` of Confluent's ``Schema``.
        """
        digest = hashlib.md5(self.text.encode(errors="surrogatepass"), usedforsecurity=False)
        for one in self.references:
            digest.update((one.name + one.subject).encode(errors="surrogatepass"))
            digest.update(struct.pack(">i", one.version))
        for extra in (self.metadata, self.rule_set):
            if extra:
                digest.update(b"\x01" + extra.encode(errors="surrogatepass"))
        return str(UUID(bytes=digest.digest()))


def compact_json(value: object) -> str:
    """Return the value as JSON without spaces, its members in their order."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False)
