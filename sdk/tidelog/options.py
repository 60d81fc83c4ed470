"""What a client can be told, checked once with all problems reported together.

What each option means and which values it takes. The defaults of what every client can be
told are here, the others in the signatures of ``Producer``, ``Consumer`` and ``Admin``.
"""

from __future__ import annotations

import ssl as ssl_module
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, TypedDict

from tidelog_core.records.batch import CompressionType

from tidelog.errors import InvalidConfig
from tidelog.wire.connection import Address

Partitioner = Callable[[str, bytes | None, bytes | None, int], int]
"""Chooses a partition from topic, key, value and the number of partitions."""

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
IN_FLIGHT_MAX_IDEMPOTENT = 5  # How many batches a partition's leader remembers of a producer.

DEFAULT_PORT = 9092


class ClientSettings(TypedDict, total=False):
    """What every client can be told of how to talk to a cluster: see ``ClientOptions``."""

    client_id: str
    request_timeout_ms: int
    metadata_max_age_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    reconnect_backoff_ms: int
    reconnect_backoff_max_ms: int
    ssl: ssl_module.SSLContext | None


@dataclass(frozen=True, slots=True)
class ClientOptions:
    """What every client needs to find and talk to a cluster."""

    bootstrap: tuple[Address, ...]
    client_id: str = "tidelog"
    request_timeout_ms: int = 30_000  # an answer must come within
    metadata_max_age_ms: int = 300_000  # leaders and partition counts are looked up again after
    retry_backoff_ms: int = 100  # first wait before a failed request is tried again
    retry_backoff_max_ms: int = 1_000
    reconnect_backoff_ms: int = 50  # first wait before a node that failed is connected to again
    reconnect_backoff_max_ms: int = 1_000
    ssl: ssl_module.SSLContext | None = None  # None: plain TCP

    def problems(self) -> list[str]:
        """Return what is wrong, one sentence each."""
        return [
            *positive(self, "request_timeout_ms", "metadata_max_age_ms"),
            *positive(self, "retry_backoff_ms", "retry_backoff_max_ms"),
            *positive(self, "reconnect_backoff_ms", "reconnect_backoff_max_ms"),
        ]


@dataclass(frozen=True, slots=True)
class ProducerOptions:
    """How a producer batches, retries and promises."""

    acks: int  # 0: none waited for, 1: the leader's, -1: all in-sync replicas'
    is_idempotent: bool  # each record is written once and in order, whatever is retried
    compression: CompressionType
    compression_level: int | None  # None: the codec's default
    batch_size_bytes: int  # a partition's batch is sent when this is reached
    linger_ms: float  # or when it is this old
    request_size_bytes_max: int  # no record and no request is larger
    buffer_memory_bytes: int  # records that wait or are under way; more make send() wait
    max_block_ms: int  # how long send() waits for room or for the topic's metadata
    max_in_flight: int  # requests under way to one node
    retries: int
    delivery_timeout_ms: int  # from send() to success or failure, retries included
    request_timeout_ms: int
    retry_backoff_ms: int
    retry_backoff_max_ms: int
    transactional_id: str | None  # names this producer over restarts; None: no transactions
    transaction_timeout_ms: int  # after which the coordinator aborts what is still open

    def problems(self) -> list[str]:
        """Return what is wrong, one sentence each."""
        found = [
            *positive(self, "batch_size_bytes", "request_size_bytes_max", "buffer_memory_bytes"),
            *positive(self, "max_block_ms", "max_in_flight", "delivery_timeout_ms"),
            *positive(self, "transaction_timeout_ms"),
        ]
        if self.transactional_id == "":
            found.append("transactional_id must not be empty; leave it out to have no transactions")
        if self.transactional_id is not None and not self.is_idempotent:
            found.append("transactions need idempotence")
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
        return found

    def _problems_of_idempotence(self) -> list[str]:
        found = []
        if self.acks != -1:
            found.append("idempotence needs acks='all'")
        if self.retries == 0:
            found.append("idempotence needs retries")
        if self.max_in_flight > IN_FLIGHT_MAX_IDEMPOTENT:
            found.append(
                f"idempotence needs max_in_flight of at most {IN_FLIGHT_MAX_IDEMPOTENT}, "
                f"is {self.max_in_flight}"
            )
        return found


@dataclass(frozen=True, slots=True)
class ConsumerOptions:
    """How a consumer fetches, commits and lives in its group."""

    group_id: str | None  # None: no group, only assign()
    group_instance_id: str | None  # a name that survives restarts: static membership
    group_protocol: GroupProtocol  # who divides the partitions: a member, or the coordinator
    group_remote_assignor: str | None  # the coordinator's assignor to ask for; None: its choice
    assignors: tuple[AssignorName, ...]  # in order of preference; classic protocol
    auto_offset_reset: ResetPolicy  # where to start when nothing (or nothing valid) is committed
    enable_auto_commit: bool
    auto_commit_interval_ms: int
    isolation_level: IsolationLevel
    fetch_min_bytes: int
    fetch_max_wait_ms: int
    fetch_max_bytes: int  # of one answer
    max_partition_fetch_bytes: int  # of one partition in one answer
    prefetch_bytes_max: int  # fetched and not yet consumed, all partitions together
    max_poll_records: int
    max_poll_interval_ms: int  # longer between two polls and the group gives up on us
    session_timeout_ms: int  # classic protocol, and the next
    heartbeat_interval_ms: int
    allow_auto_create_topics: bool
    check_crcs: bool
    rack: str | None

    def problems(self) -> list[str]:
        """Return what is wrong, one sentence each."""
        found = [
            *positive(self, "auto_commit_interval_ms", "fetch_min_bytes", "fetch_max_bytes"),
            *positive(self, "max_partition_fetch_bytes", "prefetch_bytes_max", "max_poll_records"),
            *positive(self, "max_poll_interval_ms", "session_timeout_ms", "heartbeat_interval_ms"),
            *one_of("auto_offset_reset", self.auto_offset_reset, ("earliest", "latest", "none")),
            *one_of(
                "isolation_level", self.isolation_level, ("read_uncommitted", "read_committed")
            ),
        ]
        for assignor in self.assignors:
            found += one_of("assignors", assignor, ASSIGNORS)
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
                f"{name} is the coordinator's to say with group_protocol='consumer'"
                for name, default in (
                    ("assignors", (DEFAULT_ASSIGNOR,)),
                    ("session_timeout_ms", DEFAULT_SESSION_TIMEOUT_MS),
                    ("heartbeat_interval_ms", DEFAULT_HEARTBEAT_INTERVAL_MS),
                )
                if getattr(self, name) != default
            ]
        return found


def client_options(
    bootstrap_servers: str | Sequence[str], settings: ClientSettings
) -> ClientOptions:
    """Return the options, not checked. Raises ``InvalidConfig`` for the servers."""
    return ClientOptions(parse_bootstrap(bootstrap_servers), **settings)


def check(*options: ClientOptions | ProducerOptions | ConsumerOptions) -> None:
    """Raise ``InvalidConfig`` with every problem of the options, if there is any."""
    problems = [problem for option in options for problem in option.problems()]
    if problems:
        raise InvalidConfig(problems)


def positive(options: object, *names: str) -> list[str]:
    """Return a sentence for each named number that is not above zero."""
    return [
        f"{name} must be above zero, is {getattr(options, name)}"
        for name in names
        if getattr(options, name) <= 0
    ]


def one_of(name: str, value: object, allowed: Sequence[str]) -> list[str]:
    """Return a sentence if the value is not one of those allowed."""
    return [] if value in allowed else [f"{name} must be one of {', '.join(allowed)}, not {value}"]


def parse_bootstrap(servers: str | Sequence[str]) -> tuple[Address, ...]:
    """Return the addresses in ``"host:port,host:port"`` or a sequence of ``"host:port"``.

    IPv6 addresses are written ``[::1]:9092``. The port may be left out.
    """
    parts = servers.split(",") if isinstance(servers, str) else list(servers)
    addresses, problems = [], []
    for part in (p.strip() for p in parts):
        if not part:
            continue
        address = _parse_address(part)
        if address is None:
            problems.append(f"bootstrap server {part!r} is not host:port")
        else:
            addresses.append(address)
    if not addresses and not problems:
        problems.append("bootstrap_servers names no server")
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
