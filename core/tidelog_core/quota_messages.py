"""The messages of DescribeQuotaUse, an API of Tidelog's own.

Declared as kio declares Kafka's messages; ``role_messages`` says why.
"""

# Without postponed annotations: kio needs the fields' types themselves.
from dataclasses import dataclass, field
from typing import ClassVar

from kio.schema.errors import ErrorCode
from kio.schema.request_header.v2.header import RequestHeader
from kio.schema.response_header.v1.header import ResponseHeader
from kio.static.constants import EntityType
from kio.static.primitive import f64, i16, i32, i32Timedelta

DESCRIBE_QUOTA_USE_KEY = 20_004
USES_MAX = 1_000  # in an answer


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuotaUseRequest:
    """Asks a node for the quotas that its clients use most."""

    __type__: ClassVar = EntityType.request
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_QUOTA_USE_KEY)
    __header_schema__: ClassVar[type[RequestHeader]] = RequestHeader
    count: i32 = field(metadata={"kafka_type": "int32"})
    """How many at most; ``USES_MAX`` are given at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuotaUse:
    """The use of one quota by those who share it, on the node that answers."""

    __type__: ClassVar = EntityType.nested
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_QUOTA_USE_KEY)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    key: str = field(metadata={"kafka_type": "string"})
    """The name of the quota, such as ``producer_byte_rate``."""
    user: str = field(metadata={"kafka_type": "string"})
    """The user whose clients share it, empty if all users do."""
    client_id: str = field(metadata={"kafka_type": "string"})
    """The client id of those who share it, empty if all ids do."""
    quota: f64 = field(metadata={"kafka_type": "float64"})
    """A second, as it is stored."""
    part: f64 = field(metadata={"kafka_type": "float64"})
    """A second, of this node: the quota, or a part of it if it is the cluster's."""
    rate: f64 = field(metadata={"kafka_type": "float64"})
    """A second, over the windows that count."""
    throttle_time_ms: i32 = field(metadata={"kafka_type": "int32"})
    """How long it takes until the rate is within the part; 0 if it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribeQuotaUseResponse:
    """The most used quotas first, measured by the share of the node's part that is used."""

    __type__: ClassVar = EntityType.response
    __version__: ClassVar[i16] = i16(0)
    __flexible__: ClassVar[bool] = True
    __api_key__: ClassVar[i16] = i16(DESCRIBE_QUOTA_USE_KEY)
    __header_schema__: ClassVar[type[ResponseHeader]] = ResponseHeader
    throttle_time: i32Timedelta = field(metadata={"kafka_type": "timedelta_i32"})
    error_code: ErrorCode = field(metadata={"kafka_type": "error_code"})
    error_message: str | None = field(metadata={"kafka_type": "string"})
    uses: tuple[QuotaUse, ...]
