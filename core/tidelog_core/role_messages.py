"""The messages of DescribeRoles and AlterRoles, APIs of Tidelog's own.

They are declared as kio declares Kafka's, so that the same code reads and writes them. Their keys
are far from Kafka's; clients ignore keys of ApiVersions that they do not know.
"""

# Without postponed annotations: kio needs the fields' types themselves.
from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import i8, i16, i32Timedelta

DESCRIBE_ROLES_KEY = 20_002
ALTER_ROLES_KEY = 20_003

CREATE, DELETE, CHANGE = 1, 2, 3  # operations of AlterRoles


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeRolesRequest:
    """Asks for roles. Roles that are not there are left out of the answer."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_ROLES_KEY)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    names: tuple[str, ...] | None = field(metadata={"kafka_type": "string"}, default=None)
    """Only these roles, or null for all of them."""
    members: tuple[str, ...] | None = field(metadata={"kafka_type": "string"}, default=None)
    """Only roles that have one of these principals, or null."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedRole:
    """One role."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_ROLES_KEY)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    name: str = field(metadata={"kafka_type": "string"})
    members: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())
    """The principals of the role, in their order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeRolesResponse:
    """The roles in the order of their names."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_ROLES_KEY)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    roles: tuple[DescribedRole, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RoleAlteration:
    """The change of one role."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ALTER_ROLES_KEY)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    name: str = field(metadata={"kafka_type": "string"})
    operation: i8 = field(metadata={"kafka_type": "int8"})
    """``CREATE`` (1), ``DELETE`` (2) or ``CHANGE`` (3)."""
    added: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())
    """Principals that the role has afterwards."""
    removed: tuple[str, ...] = field(metadata={"kafka_type": "string"}, default=())
    """Principals that it does not have afterwards."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterRolesRequest:
    """Creates, deletes and changes roles, each wholly or not at all."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ALTER_ROLES_KEY)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    alterations: tuple[RoleAlteration, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AlteredRole:
    """The outcome for one role."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ALTER_ROLES_KEY)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    name: str = field(metadata={"kafka_type": "string"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})


@dataclass(frozen=True, slots=True, kw_only=True)
class AlterRolesResponse:
    """One result for each role of the request."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(ALTER_ROLES_KEY)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    results: tuple[AlteredRole, ...]
