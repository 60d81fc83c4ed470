"""Client options, checked once with all problems reported together.

Each field documents an option and its values. Options that all clients have get their
defaults here, the others in the signatures of ``Producer``, ``Consumer`` and ``Admin``.
``docs/timeouts.md`` has those that are times, and what follows once they have passed.
"""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from tidelog_core.records.codecs import LEVELS, CompressionType

from tidelog.encodable import is_encodable
from tidelog.errors import InvalidConfig
from tidelog.option_types import type_problems
from tidelog.wire.connection import Address
from tidelog.wire.sasl import Sasl, SaslToken

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""Returns a partition for topic, key, value and the number of partitions."""

PartitionerName = Literal["murmur2", "sticky", "round-robin"]
CompressionName = Literal["none", "gzip", "snappy", "lz4", "zstd"]
GroupProtocol = Literal["classic", "consumer"]
AssignorName = Literal["range", "roundrobin", "sticky", "cooperative-sticky"]
ResetPolicy = Literal["earliest", "latest", "none"]
IsolationLevel = Literal["read_uncommitted", "read_committed"]

COMPRESSION: Mapping[str, CompressionType] = {c.name.lower(): c for c in CompressionType}
PARTITIONERS: tuple[PartitionerName, ...] = ("murmur2", "sticky", "round-robin")
ASSIGNORS: tuple[AssignorName, ...] = ("range", "roundrobin", "sticky", "cooperative-sticky")
DEFAULT_ASSIGNOR: AssignorName = "cooperative-sticky"
DEFAULT_SESSION_TIMEOUT_MS = 45_000
DEFAULT_HEARTBEAT_INTERVAL_MS = 3_000
IN_FLIGHT_MAX_IDEMPOTENT = 5  # A partition's leader remembers so many batches of a producer.

DEFAULT_PORT = 9092


class Security(TypedDict):
    """How clients are protected: see ``ClientOptions``."""

    ssl: ssl_module.SSLContext | None
    sasl: Sasl | SaslToken | None


class ClientSettings(TypedDict, total=False):
    """Connection settings that every client accepts: see ``ClientOptions``."""

    client_id: str
    request_timeout_ms: int
    bootstrap_timeout_ms: int | None
    socket_connection_setup_timeout_ms: int
    socket_connection_setup_timeout_max_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    ssl: ssl_module.SSLContext | None
    sasl: Sasl | SaslToken | None


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """Options of every client: how to find the cluster and talk to it."""

    bootstrap: tuple[Address, ...]
    client_id: str = "tidelog"
    request_timeout_ms: int = 30_000  # longest wait for an answer
    bootstrap_timeout_ms: int | None = None  # of ``start``; None: ``request_timeout_ms``
    # Longest wait for a connection and its first answer, within ``request_timeout_ms``; doubles
    # with each failure in a row, up to the maximum.
    socket_connection_setup_timeout_ms: int = 10_000
    socket_connection_setup_timeout_max_ms: int = 30_000
    metadata_max_age_ms: int = 300_000  # longest age before metadata is fetched again
    retry_backoff_ms: int = 100  # wait before the first retry; doubles up to the maximum
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50  # wait before the first reconnection to a node; doubles
    reconnect_backoff_max_ms: int = 1_000
    ssl: ssl_module.SSLContext | None = None  # None: plain TCP
    sasl: Sasl | SaslToken | None = None  # None: no login

    def problems(self) -> list[str]:
        """Return the problems, one sentence each."""
        return [
            *positive(self, "request_timeout_ms", "metadata_max_age_ms"),
            *positive(self, "bootstrap_timeout_ms", "socket_connection_setup_timeout_ms"),
            *positive(self, "socket_connection_setup_timeout_max_ms"),
            *positive(self, "retry_backoff_ms", "retry_backoff_max_ms"),
            *positive(self, "reconnect_backoff_ms", "reconnect_backoff_max_ms"),
            *encodable(self, "client_id"),
            *self._problems_of_security(),
        ]

    def _problems_of_security(self) -> list[str]:
        found: list[str] = []
        if not isinstance(self.ssl, ssl_module.SSLContext | None):
            found.append(
                "ssl must be an ssl.SSLContext, such as ssl.create_default_context(), not"
                f" {self.ssl!r}"
            )
        if isinstance(self.sasl, Sasl | SaslToken):
            return found + self.sasl.problems()
        if self.sasl is not None:  # It may have the password.
            found.append(f"sasl must be a Sasl or SaslToken, not a {type(self.sasl).__name__}")
        return found


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """Options for batching, retries and delivery guarantees."""

    acks: int  # 0: no answer, 1: after the leader's append, -1: after all in-sync replicas'
    is_idempotent: bool  # writes each record once and in order, despite retries
    compression: CompressionType
    compression_level: int | None  # None: the codec's default
    batch_size_bytes: int  # A partition's batch is sent when it has this size
    linger_ms: float  # or this age.
    request_size_bytes_max: int  # largest record and largest request
    buffer_memory_bytes: int  # buffered and in-flight records; send() waits when it is full
    max_block_ms: int  # longest wait in send() for buffer space or the topic's metadata
    max_in_flight: int  # requests in flight to one node
    retries: int  # of a batch after its first attempt, within ``delivery_timeout_ms``
    delivery_timeout_ms: int  # from send() to success or failure, retries included
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    transactional_id: str | None  # identifies this producer across restarts; None: no transactions
    transaction_timeout_ms: int  # The coordinator aborts an open transaction after this time.

    def problems(self) -> list[str]:
        """Return the problems, one sentence each."""
        found = [
            *positive(self, "batch_size_bytes", "request_size_bytes_max", "buffer_memory_bytes"),
            *positive(self, "max_block_ms", "max_in_flight", "delivery_timeout_ms"),
            *positive(self, "transaction_timeout_ms"),
            *encodable(self, "transactional_id"),
        ]
        if self.transactional_id == "":
            found.append("transactional_id must not be empty; leave it out to have no transactions")
        if self.transactional_id is not None and not self.is_idempotent:
            found.append("transactions need idempotence; set enable_idempotence=True")
        if self.acks not in (0, 1, -1):
            found.append(f"acks must be 0, 1 or 'all', not {self.acks}")
        if self.linger_ms < 0:
            found.append(f"linger_ms must not be negative, is {self.linger_ms}")
        if self.retries < 0:
            found.append(f"retries must not be negative, is {self.retries}")
        if self.delivery_timeout_ms < self.linger_ms + self.request_timeout_ms:
            found.append(
                "delivery_timeout_ms must be at least linger_ms + request_timeout_ms, "
                f"{self.linger_ms + self.request_timeout_ms:g}, is {self.delivery_timeout_ms}"
            )
        if self.is_idempotent:
            found += self._problems_of_idempotence()
        return found + self._problems_of_level()

    def _problems_of_level(self) -> list[str]:
        level, codec = self.compression_level, self.compression
        if level is None or codec is CompressionType.NONE:
            return []
        if codec not in LEVELS:
            return [f"{codec.name.lower()} has no compression_level; leave it out"]
        levels, _ = LEVELS[codec]
        if level in levels:
            return []
        first, last = levels[0], levels[-1]
        return [f"compression_level of {codec.name.lower()} must be {first} to {last}, is {level}"]

    def _problems_of_idempotence(self) -> list[str]:
        found = []
        if self.acks != -1:
            found.append("idempotence needs acks='all'; set it, or enable_idempotence=False")
        if self.retries == 0:
            found.append("idempotence needs retries above zero")
        if self.max_in_flight > IN_FLIGHT_MAX_IDEMPOTENT:
            found.append(
                f"idempotence needs max_in_flight of at most {IN_FLIGHT_MAX_IDEMPOTENT}, "
                f"is {self.max_in_flight}"
            )
        return found


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """Options for fetching, committing and group membership."""

    group_id: str | None  # None: no group, only assign()
    group_instance_id: str | None  # a name that survives restarts: static membership
    group_protocol: GroupProtocol  # partitions are assigned by: a member, or the coordinator
    group_remote_assignor: str | None  # the coordinator's assignor; None: its default
    assignors: tuple[AssignorName, ...]  # in order of preference; classic protocol
    auto_offset_reset: ResetPolicy  # start position without a valid committed offset
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: IsolationLevel  # read_committed: no records of open and aborted transactions
    # A node holds a fetch at the end of the log until it has so many bytes, or for so long.
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int  # for one answer
    max_partition_fetch_bytes: int  # for one partition in one answer
    prefetch_bytes_max: int  # fetched and not yet returned, over all partitions
    max_poll_records: int  # that one ``poll`` returns
    max_poll_interval_ms: int  # The group removes a member that does not poll for so long.
    session_timeout_ms: int  # classic protocol only, as is the next
    heartbeat_interval_ms: int
    allow_auto_create_topics: bool  # a node creates topics that are asked for, if it may
    check_crcs: bool  # compare each batch with its CRC-32C
    rack: str | None  # where this consumer runs: nodes name a replica there to read from

    def problems(self) -> list[str]:
        """Return the problems, one sentence each."""
        found = [
            *positive(self, "auto_commit_interval_ms", "fetch_min_bytes", "fetch_max_bytes"),
            *positive(self, "max_partition_fetch_bytes", "prefetch_bytes_max", "max_poll_records"),
            *positive(self, "max_poll_interval_ms", "session_timeout_ms", "heartbeat_interval_ms"),
            *encodable(self, "group_id", "group_instance_id", "group_remote_assignor", "rack"),
            *one_of("auto_offset_reset", self.auto_offset_reset, ("earliest", "latest", "none")),
            *one_of(
                "isolation_level", self.isolation_level, ("read_uncommitted", "read_committed")
            ),
        ]
        for assignor in self.assignors:
            found += one_of("assignors", assignor, ASSIGNORS)
        if self.fetch_max_wait_ms < 0:
            found.append(f"fetch_max_wait_ms must not be negative, is {self.fetch_max_wait_ms}")
        if not self.assignors:
            found.append(f"assignors must name at least one of {', '.join(ASSIGNORS)}")
        if "cooperative-sticky" in self.assignors and len(self.assignors) > 1:
            found.append("cooperative-sticky cannot share a consumer with the eager assignors")
        if self.heartbeat_interval_ms >= self.session_timeout_ms:
            found.append(
                f"heartbeat_interval_ms must be below session_timeout_ms "
                f"({self.session_timeout_ms}), is {self.heartbeat_interval_ms}"
            )
        if self.group_id == "":
            found.append("group_id must not be empty; leave it out to consume without a group")
        if self.group_id is None and self.group_instance_id is not None:
            found.append("group_instance_id needs a group_id")
        return found + self._problems_of_protocol()

    def _problems_of_protocol(self) -> list[str]:
        found = one_of("group_protocol", self.group_protocol, ("classic", "consumer"))
        if self.group_protocol == "classic" and self.group_remote_assignor is not None:
            found.append("group_remote_assignor needs group_protocol='consumer'")
        if self.group_protocol == "consumer":
            found += [
                f"{name} cannot be set with group_protocol='consumer'; the coordinator decides"
                for name, default in (
                    ("assignors", (DEFAULT_ASSIGNOR,)),
                    ("session_timeout_ms", DEFAULT_SESSION_TIMEOUT_MS),
                    ("heartbeat_interval_ms", DEFAULT_HEARTBEAT_INTERVAL_MS),
                )
                if getattr(self, name) != default
            ]
        return found


def client_options(
    bootstrap_servers: str | Sequence[str], settings: ClientSettings, of: Callable[..., object]
) -> ClientOptions:
    """Return unchecked options for ``of``, the client or function that they were given to.

    Raises ``InvalidConfig`` for invalid servers, ``TypeError`` for a setting that does not exist.
    """
    names = ClientSettings.__annotations__
    if not settings.keys() <= names.keys():
        from tidelog.option_names import check_names  # Most programs have no such name.

        check_names(settings, names, of)
    return ClientOptions(parse_bootstrap(bootstrap_servers), **settings)


def check(
    *options: ClientOptions | ProducerOptions | ConsumerOptions, others: Sequence[str] = ()
) -> None:
    """Raise ``InvalidConfig`` with all problems of the options, and the ``others``, if any."""
    problems = list(others)
    for option in options:
        # Values of other types cannot be compared with their bounds.
        problems += type_problems(option) or option.problems()
    if problems:
        raise InvalidConfig(list(dict.fromkeys(problems)))  # Producers share some with clients.


def positive(options: object, *names: str) -> list[str]:
    """Return a sentence for each named number that is given and not above zero."""
    given = {name: getattr(options, name) for name in names}
    return [
        f"{name} must be above zero, is {number}"
        for name, number in given.items()
        if number is not None and number <= 0
    ]


def encodable(options: object, *names: str) -> list[str]:
    """Return a sentence for each named text that is given and has no UTF-8."""
    given = {name: getattr(options, name) for name in names}
    return [
        f"{name} cannot be encoded as UTF-8, is {text!r}"
        for name, text in given.items()
        if text is not None and not is_encodable(text)
    ]


def one_of(name: str, value: object, allowed: Sequence[str]) -> list[str]:
    """Return a sentence if the value is not an allowed one."""
    return [] if value in allowed else [f"{name} must be one of {', '.join(allowed)}, not {value}"]


def parse_bootstrap(servers: str | Sequence[str]) -> tuple[Address, ...]:
    """Return the addresses in ``"host:port,host:port"`` or a sequence of ``"host:port"``.

    IPv6 addresses are written ``[::1]:9092``. The port may be left out.
    """
    parts = servers.split(",") if isinstance(servers, str) else servers
    if isinstance(parts, bytes | Mapping) or not isinstance(parts, Iterable):
        raise InvalidConfig(
            [
                f"bootstrap_servers must be a text or a list, not of type {type(parts).__name__};"
                " each other option is an argument by its name"
            ]
        )
    addresses, problems = [], []
    for given in parts:
        part = given.strip() if isinstance(given, str) else given
        if part == "":
            continue
        address = _parse_address(part) if isinstance(part, str) else None
        if address is None:
            problems.append(f"bootstrap server {part!r} is not host:port")
        else:
            addresses.append(address)
    if not addresses and not problems:
        problems.append("bootstrap_servers names no server; give host:port")
    if problems:
        raise InvalidConfig(problems)
    return tuple(addresses)


def parse_acks(acks: int | str) -> int:
    """Return acks as the protocol's number."""
    known = {"all": -1, "-1": -1, "0": 0, "1": 1}
    if str(acks) not in known:
        raise InvalidConfig([f"acks must be 0, 1 or 'all', not {acks!r}"])
    return known[str(acks)]


def parse_compression(name: str) -> CompressionType:
    """Return the codec of that name."""
    if name not in COMPRESSION:
        raise InvalidConfig(one_of("compression", name, tuple(COMPRESSION)))
    return COMPRESSION[name]


def _parse_address(text: str) -> Address | None:
    if text.startswith("["):
        host, bracket, rest = text[1:].partition("]")
        port = rest[1:] if rest.startswith(":") else str(DEFAULT_PORT) if not rest else ""
        host = host if bracket else ""
    else:
        host, colon, port = text.partition(":")
        port = port if colon else str(DEFAULT_PORT)
    if not host or not port.isdecimal() or not 0 < int(port) < 1 << 16:
        return None
    return Address(host, int(port))
