"""The APIs that the SDK calls, each with a version range that one message class covers.

A request is built as the class of the API's newest version here and written in the
negotiated version; the response is returned as the newest class, with defaults for the
fields that an older version lacks.

On the wire, both ways: int32 size, then a header (request: API key, version, correlation
id and client id; response: the correlation id), then the message.
Source: the Kafka protocol guide, request and response headers 0 to 2.
"""

from __future__ import annotations

import datetime
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from kio.schema.errors import ErrorCode
from kio.serial.errors import SerialError
from tidelog_core.message_reader import read_from, read_message
from tidelog_core.message_schemas import api_name, load_request_schema, load_response_schema
from tidelog_core.quota_messages import DESCRIBE_QUOTA_USE_KEY
from tidelog_core.role_messages import ALTER_ROLES_KEY, DESCRIBE_ROLES_KEY
from tidelog_core.wire_messages import write_message

from tidelog.errors import InvalidRequest, UnsupportedVersion

_REQUEST_HEADER = struct.Struct(">ihhih")  # size, key, version, correlation id, client id size


@dataclass(frozen=True, slots=True)
class Api:
    """An API with versions ``[min_version, max_version]``, both included."""

    key: int
    min_version: int
    max_version: int

    @property
    def name(self) -> str:
        """Return the API's name, as in ``list_offsets``."""
        return api_name(self.key)


PRODUCE = Api(0, 3, 12)  # 13 addresses topics by id
PRODUCE_TO_ADDED = Api(0, 3, 11)  # 12 adds the partition to the transaction (KIP-890)
FETCH_BY_NAME = Api(1, 4, 12)
FETCH_BY_ID = Api(1, 15, 17)
LIST_OFFSETS = Api(2, 2, 10)
METADATA = Api(3, 11, 13)
METADATA_BY_ID = Api(3, 12, 13)
OFFSET_COMMIT = Api(8, 5, 9)  # 10 addresses topics by id
OFFSET_FETCH = Api(9, 8, 9)
FIND_COORDINATOR = Api(10, 4, 6)
JOIN_GROUP = Api(11, 5, 9)
HEARTBEAT = Api(12, 3, 4)
LEAVE_GROUP = Api(13, 3, 5)
SYNC_GROUP = Api(14, 3, 5)
DESCRIBE_GROUPS = Api(15, 0, 6)
LIST_GROUPS = Api(16, 0, 5)
LIST_GROUPS_BY_STATE = Api(16, 4, 5)
LIST_GROUPS_BY_TYPE = Api(16, 5, 5)
SASL_HANDSHAKE = Api(17, 1, 1)  # 0: messages without headers follow
API_VERSIONS = Api(18, 0, 3)
CREATE_TOPICS = Api(19, 2, 7)
DELETE_TOPICS = Api(20, 6, 6)
DELETE_RECORDS = Api(21, 0, 2)
INIT_PRODUCER_ID = Api(22, 0, 5)
OFFSET_FOR_LEADER_EPOCH = Api(23, 3, 4)  # 2 is only for brokers
ADD_PARTITIONS_TO_TXN = Api(24, 0, 3)  # 4 is only for brokers
ADD_OFFSETS_TO_TXN = Api(25, 0, 4)
END_TXN = Api(26, 0, 5)  # 5 gives the next transaction its own epoch (KIP-890)
END_TXN_OF_EPOCH = Api(26, 0, 4)
WRITE_TXN_MARKERS = Api(27, 1, 1)
TXN_OFFSET_COMMIT = Api(28, 3, 5)  # 5 adds the group to the transaction
TXN_OFFSET_COMMIT_TO_ADDED = Api(28, 3, 4)
DESCRIBE_ACLS = Api(29, 1, 3)
CREATE_ACLS = Api(30, 1, 3)
DELETE_ACLS = Api(31, 1, 3)
DESCRIBE_CONFIGS = Api(32, 1, 4)
DESCRIBE_LOG_DIRS = Api(35, 1, 4)
CREATE_PARTITIONS = Api(37, 0, 3)
SASL_AUTHENTICATE = Api(36, 0, 2)
CREATE_DELEGATION_TOKEN = Api(38, 1, 3)
CREATE_DELEGATION_TOKEN_FOR = Api(38, 3, 3)  # another owner (KIP-373)
RENEW_DELEGATION_TOKEN = Api(39, 1, 2)
EXPIRE_DELEGATION_TOKEN = Api(40, 1, 2)
DESCRIBE_DELEGATION_TOKEN = Api(41, 1, 3)
DELETE_GROUPS = Api(42, 0, 2)
ELECT_LEADERS = Api(43, 1, 2)  # 0 has no election type
INCREMENTAL_ALTER_CONFIGS = Api(44, 0, 1)
ALTER_PARTITION_REASSIGNMENTS = Api(45, 0, 1)
LIST_PARTITION_REASSIGNMENTS = Api(46, 0, 0)
OFFSET_DELETE = Api(47, 0, 0)
DESCRIBE_CLIENT_QUOTAS = Api(48, 0, 1)
ALTER_CLIENT_QUOTAS = Api(49, 0, 1)
DESCRIBE_USER_SCRAM_CREDENTIALS = Api(50, 0, 0)
ALTER_USER_SCRAM_CREDENTIALS = Api(51, 0, 0)
DESCRIBE_CLUSTER = Api(60, 0, 1)
DESCRIBE_PRODUCERS = Api(61, 0, 0)
DESCRIBE_TRANSACTIONS = Api(65, 0, 0)
LIST_TRANSACTIONS = Api(66, 1, 2)  # 0 has no duration filter
LIST_TRANSACTIONS_BY_PATTERN = Api(66, 2, 2)
CONSUMER_GROUP_HEARTBEAT = Api(68, 1, 1)  # from 1 on: member ids by clients, patterns
CONSUMER_GROUP_DESCRIBE = Api(69, 0, 1)
SHARE_GROUP_DESCRIBE = Api(77, 1, 1)
DESCRIBE_SHARE_GROUP_OFFSETS = Api(90, 0, 0)
ALTER_SHARE_GROUP_OFFSETS = Api(91, 0, 0)
DELETE_SHARE_GROUP_OFFSETS = Api(92, 0, 0)
DESCRIBE_ROLES = Api(DESCRIBE_ROLES_KEY, 0, 0)  # Tidelog's own
ALTER_ROLES = Api(ALTER_ROLES_KEY, 0, 0)
DESCRIBE_QUOTA_USE = Api(DESCRIBE_QUOTA_USE_KEY, 0, 0)

Buffer = bytes | memoryview
VersionRanges = Mapping[int, tuple[int, int]]  # by API key, both ends included


class NodeVersions(NamedTuple):
    """A node's answer to ApiVersions."""

    error: ErrorCode
    ranges: VersionRanges
    features: Mapping[str, int]  # finalized levels of the cluster, by name
    node_features: tuple[str, ...]  # names of the features that the node has
    throttle_time: datetime.timedelta  # as of every answer


def choose_version(api: Api, node_ranges: VersionRanges) -> int:
    """Return the newest version that both sides support.

    Raises ``UnsupportedVersion``, naming both ranges, if there is none.
    """
    low, high = node_ranges.get(api.key, (0, -1))
    version = min(high, api.max_version)
    if version < max(low, api.min_version):
        node = f"the node has {low} to {high}" if high >= low else "the node does not have it"
        raise UnsupportedVersion(
            f"{api.name} needs a version from {api.min_version} to {api.max_version}; {node}"
        )
    return version


def supports(api: Api, node_ranges: VersionRanges) -> bool:
    """Return whether both sides share a version of the API."""
    low, high = node_ranges.get(api.key, (0, -1))
    return min(high, api.max_version) >= max(low, api.min_version)


def encode_request(
    api: Api, version: int, *, correlation_id: int, client_id: bytes, message: object
) -> bytes:
    """Return the complete frame, including its size.

    Raises ``InvalidRequest`` for a value that the API has no room for: a text without UTF-8 or of
    more than 32767 bytes, a number beyond its field, a value of another type.
    """
    schema = load_request_schema(api.key, version)
    try:
        body = write_message(schema, message)
    except UnicodeEncodeError as error:
        raise InvalidRequest(f"a text in {api.name} cannot be encoded as UTF-8: {error}") from None
    # A text for a number, or a number for a text: serializers of fields raise what they run into.
    except (struct.error, SerialError, OverflowError, TypeError, AttributeError) as error:
        raise InvalidRequest(f"a value in {api.name} cannot be encoded: {error}") from error
    tags = b"\0" if schema.__flexible__ else b""
    header_size = _REQUEST_HEADER.size - 4 + len(client_id) + len(tags)
    head = _REQUEST_HEADER.pack(
        header_size + len(body), api.key, version, correlation_id, len(client_id)
    )
    return b"".join((head, client_id, tags, body))


def correlation_id_of(frame: Buffer) -> int:
    """Return the correlation id in a response's frame (without its size)."""
    return int.from_bytes(frame[:4], "big", signed=True)


def decode_response(api: Api, version: int, frame: Buffer) -> Any:
    """Decode a frame (without its size) into the API's newest response class.

    Records are views of a frame that is a memoryview. Raises ``MalformedMessage``.
    """
    has_views = isinstance(frame, memoryview)
    schema = _response_schema(api.key, version)
    _, position = read_from(schema.__header_schema__, frame, 0, has_views=has_views)
    newest = _response_schema(api.key, api.max_version)
    return read_message(schema, frame, position, newest=newest, has_views=has_views)


def decode_api_versions(version: int, frame: Buffer) -> NodeVersions:
    """Decode an ApiVersions response.

    A node that does not support the requested version answers in version 0.
    """
    error = int.from_bytes(frame[4:6], "big", signed=True)
    if error == ErrorCode.unsupported_version:
        version = 0
    response = decode_response(API_VERSIONS, version, frame)
    ranges = {int(a.api_key): (int(a.min_version), int(a.max_version)) for a in response.api_keys}
    features = {f.name: int(f.max_version_level) for f in response.finalized_features}
    names = tuple(feature.name for feature in response.supported_features)
    return NodeVersions(response.error_code, ranges, features, names, response.throttle_time)


@cache
def _response_schema(api_key: int, version: int) -> Any:
    if api_key == DESCRIBE_TRANSACTIONS.key:
        from tidelog.wire.transaction_states import DescribeTransactionsResponse  # rarely needed

        return DescribeTransactionsResponse
    return load_response_schema(api_key, version)
