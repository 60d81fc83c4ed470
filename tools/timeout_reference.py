"""Writes ``docs/timeouts.md`` from the SDK's options: ``python -m tools.timeout_reference``.

Defaults are those of the signatures and constants. ``tests/sdk/test_timeouts.py`` lets each timeout
pass and compares the error.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from tidelog import Admin, Consumer, Producer, SyncDelivery
from tidelog.connections import NEXT_NODE_SECONDS
from tidelog.consuming.classic_membership import JOIN_LAPSE_S
from tidelog.consuming.fetcher import SESSION_CLOSE_S
from tidelog.consuming.membership import LEAVE_TIMEOUT_S
from tidelog.errors import (
    BufferExhausted,
    CommitFailed,
    ConnectionFailed,
    DeliveryTimedOut,
    PartitionNotKnown,
    ProducerFenced,
    RequestTimedOut,
    TransactionAborted,
    TransactionOutcomeUnknown,
    UnknownTopicOrPartition,
)
from tidelog.options import ClientOptions
from tidelog.producing.sync_producer import EXIT_SECONDS_MAX
from tidelog.wire.connection import THROTTLE_S_MAX
from tidelog.wire.opening import ANSWER_SECONDS

from tools.places import ROOT

PAGE = ROOT / "docs" / "timeouts.md"

Call = Callable[..., object]


@dataclass(frozen=True, slots=True)
class Timeout:
    """An option or argument that bounds a wait."""

    name: str
    bounds: str
    follows: str  # what happens once it has passed; ``{}`` are the names of the errors
    errors: tuple[type[Exception], ...] = ()
    kafka: str | None = ""  # Kafka's name; empty: the same with dots; None: it has none
    of: Call = ClientOptions  # whose parameter it is

    @property
    def default(self) -> object:
        """Return the parameter's default."""
        return inspect.signature(self.of).parameters[self.name].default

    @property
    def kafka_name(self) -> str:
        """Return what Kafka's clients call it; empty if they have no such option."""
        return "" if self.kafka is None else self.kafka or self.name.replace("_", ".")


OF_ALL = (
    Timeout(
        "bootstrap_timeout_ms",
        "`start()`, which the first call does too: one node has to answer, of any address given.",
        "{} with the last failure. A wrong password or certificate is raised at once.",
        (ConnectionFailed,),
        kafka=None,
    ),
    Timeout(
        "socket_connection_setup_timeout_ms",
        "TCP, TLS and the first answer on a new connection. Doubles with each failure in a row.",
        "The client connects again. Calls go on waiting, within their own limits.",
    ),
    Timeout(
        "socket_connection_setup_timeout_max_ms",
        "What the timeout above grows to, within `request_timeout_ms`.",
        "As above.",
    ),
    Timeout(
        "request_timeout_ms",
        "The answer to one request, and each step of a login. Time for which a node throttles the"
        " client does not count. Also all attempts of a consumer's `commit`, `committed`,"
        " `position`, `beginning_offsets`, `end_offsets` and `offsets_for_times`.",
        "The connection is closed, and the request repeated if its call allows that. Those calls of"
        " a consumer raise the last error that was retried, or {} if there was none. The request"
        " may have been carried out.",
        (RequestTimedOut,),
    ),
    Timeout(
        "retry_backoff_ms",
        "The wait before a request is repeated; doubles. Between metadata requests: half of it.",
        "The request is repeated.",
    ),
    Timeout("retry_backoff_max_ms", "What that wait grows to.", "As above."),
    Timeout(
        "reconnect_backoff_ms",
        "The wait before a node is connected to again; doubles.",
        "The client connects.",
    ),
    Timeout("reconnect_backoff_max_ms", "What that wait grows to.", "As above."),
    Timeout(
        "metadata_max_age_ms",
        "The age of what the client knows of topics and leaders, if nothing shows a change before.",
        "It is fetched again.",
    ),
)

OF_PRODUCERS = (
    Timeout(
        "linger_ms",
        "How long a record waits for others of its batch. A full batch, `flush()` and `close()` do"
        " not wait.",
        "The batch is sent.",
        of=Producer,
    ),
    Timeout(
        "max_block_ms",
        "A wait of `send` for room in the buffer, for an unknown topic, or for a partition that is"
        " to be added. In transactions, all attempts of one request to a coordinator.",
        "{}: the record is not buffered. A commit raises {}; an abort raises nothing, because"
        " the next transaction or `transaction_timeout_ms` ends this one.",
        (
            BufferExhausted,
            UnknownTopicOrPartition,
            PartitionNotKnown,
            RequestTimedOut,
            TransactionOutcomeUnknown,
        ),
        of=Producer,
    ),
    Timeout(
        "delivery_timeout_ms",
        "From `send` to the record's outcome: linger, requests, retries. At least `linger_ms` and"
        " `request_timeout_ms` together.",
        "The delivery raises {}; `may_be_written` says whether the record may be in the log.",
        (DeliveryTimedOut,),
        of=Producer,
    ),
    Timeout(
        "transaction_timeout_ms",
        "An open transaction, from its first record on. Nodes allow `transaction.max.timeout.ms`.",
        "The coordinator aborts it: `send` or the commit raises {}. Before KIP-890 it also fences"
        " the producer: {}.",
        (TransactionAborted, ProducerFenced),
        of=Producer,
    ),
)

OF_CONSUMERS = (
    Timeout(
        "max_poll_interval_ms",
        "The time between polls. A member that iterates shows progress with each record. Also how"
        " long a rebalance waits for this member, its listener included.",
        "It leaves the group: `on_partitions_lost` is called, and a commit raises {}. The next poll"
        " joins again.",
        (CommitFailed,),
        of=Consumer,
    ),
    Timeout(
        "session_timeout_ms",
        "The time without a heartbeat, which a background task sends. Only with"
        ' `group_protocol="classic"`; else it is'
        " the group's setting `consumer.session.timeout.ms`.",
        "The group removes the member: `on_partitions_lost` is called, and a commit raises {}.",
        (CommitFailed,),
        of=Consumer,
    ),
    Timeout(
        "heartbeat_interval_ms",
        "The time between heartbeats, below `session_timeout_ms`. Only with"
        ' `group_protocol="classic"`; else it is the'
        " group's setting `consumer.heartbeat.interval.ms`.",
        "A heartbeat is sent.",
        of=Consumer,
    ),
    Timeout(
        "auto_commit_interval_ms",
        "The time between automatic commits.",
        "Processed records are committed. A failure is logged, and the next commit has them too.",
        of=Consumer,
    ),
    Timeout(
        "fetch_max_wait_ms",
        "How long a node holds a fetch until there are `fetch_min_bytes`.",
        "It answers with what there is. `poll` does not wait for that.",
        of=Consumer,
    ),
)

OF_ADMINS = (
    Timeout(
        "timeout_ms",
        "All attempts of one call.",
        "The last error that was retried, or {} if there was none. A change may have been made.",
        (RequestTimedOut,),
        kafka="default.api.timeout.ms",
        of=Admin,
    ),
)

OF_CALLS = (
    Timeout(
        "timeout_ms",
        "`poll` and `poll_arrow` of a consumer, if no record comes. The first one also starts the"
        " consumer, within `bootstrap_timeout_ms`.",
        "An empty list, also if no node answers.",
        of=Consumer.poll,
    ),
    Timeout(
        "timeout_s",
        "`close` of a producer; `None` leaves it to `delivery_timeout_ms`, and for the abort of an"
        " open transaction to `max_block_ms`.",
        "The records that are left fail with `ClientClosed`.",
        of=Producer.close,
    ),
    Timeout(
        "timeout_s",
        "`result` and `exception` of a delivery of `Producer(…).sync()`; `None`: no limit but"
        " `delivery_timeout_ms`.",
        "{}. The record is still sent.",
        (TimeoutError,),
        of=SyncDelivery.result,
    ),
)

OPTIONS: Mapping[str, tuple[Timeout, ...]] = {
    "All clients": OF_ALL,
    "Producer": OF_PRODUCERS,
    "Consumer": OF_CONSUMERS,
    "Admin": OF_ADMINS,
}

_BEGIN = """\
# Timeouts of the SDK

How long `Producer`, `Consumer` and `Admin` wait, and what follows. Options are arguments by their
names: `Producer("localhost:9092", delivery_timeout_ms=30_000)`. Those that end in `_ms` are in
milliseconds, others in seconds. They have to be above zero; `linger_ms` and `fetch_max_wait_ms` may
be 0. [errors.md](errors.md) says what each error means. `make docs` generates this page from the
code.
"""

_OWN = """
## Your own timeouts

Every call may be cancelled, as `asyncio.timeout` does, and its client used further.

| cancelled | what holds |
|---|---|
| `start` | It may be called again; `close` ends what it had begun. |
| `send` | The record is not buffered. |
| `await delivery`, `send_and_wait` | The record is still sent, as long as its delivery timeout \
allows. Sending it again may write it twice. |
| `flush` | The records are still sent. |
| `poll`, `async for` | No record is lost: the next poll returns those that this one would have. |
| `commit` | The offsets may be committed or not. |
| the block of a transaction | It is aborted. If its commit was under way, it may be committed: \
the next transaction waits until that is settled. |
| `close` | What is left is given up, and the connections are closed. |
"""


def timeout_page() -> str:
    """Return the page."""
    parts = [_BEGIN]
    for title, rows in OPTIONS.items():
        parts += [f"\n## {title}\n\n", *_table("option", rows, has_kafka=True)]
    parts += ["\n## Arguments of calls\n\n", *_table("argument", OF_CALLS, has_kafka=False)]
    parts.append("\n## Times that cannot be set\n\n| what | time |\n|---|---|\n")
    parts += [f"| {what} | {time} |\n" for what, time in _fixed()]
    return "".join([*parts, _OWN])


def _table(first: str, rows: tuple[Timeout, ...], *, has_kafka: bool) -> Iterator[str]:
    heads = [first, "default", *(["Kafka's name"] if has_kafka else []), "bounds", "then"]
    yield f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n"
    for row in rows:
        kafka = [f"`{row.kafka_name}`" if row.kafka_name else ""] if has_kafka else []
        cells = [f"`{row.name}`", _default(row), *kafka, row.bounds, _follows(row)]
        yield f"| {' | '.join(cells)} |\n"


def _default(row: Timeout) -> str:
    if row.default is None:
        return "that of `request_timeout_ms`" if row.of is ClientOptions else "`None`"
    assert isinstance(row.default, int | float)
    return f"{row.default:,}"


def _follows(row: Timeout) -> str:
    names = [f"`{error.__name__}`" for error in row.errors]
    place_count = row.follows.count("{}")
    # The first place has all errors but those of the later ones.
    first = names[: len(names) - place_count + 1]
    *others, last = first or [""]
    return row.follows.format(
        f"{', '.join(others)} or {last}" if others else last, *names[len(first) :]
    )


def _fixed() -> Iterator[tuple[str, str]]:
    yield (
        "until another address of a host is tried beside one that takes a connection and does not"
        " answer",
        f"{ANSWER_SECONDS:g} s",
    )
    yield (
        "until another node is tried beside one that does not answer, at most",
        f"{NEXT_NODE_SECONDS:g} s",
    )
    yield "throttling that is believed of one answer, at most", f"{THROTTLE_S_MAX:g} s"
    yield (
        "the answers to JoinGroup and SyncGroup",
        f"`max_poll_interval_ms` and {JOIN_LAPSE_S:g} s, or `request_timeout_ms` if that is longer",
    )
    yield "`close()` of a consumer: its last automatic commit", "`request_timeout_ms`"
    yield (
        "`close()` of a consumer: the answer to leaving the group; then its session ends it",
        f"{LEAVE_TIMEOUT_S:g} s",
    )
    yield "`close()` of a consumer: the end of a fetch session", f"{SESSION_CLOSE_S:g} s"
    yield (
        "the end of a program that has not closed its `Producer(…).sync()`: the records that are"
        " left are sent, unless a transaction is open",
        f"{EXIT_SECONDS_MAX:g} s",
    )


if __name__ == "__main__":
    PAGE.write_text(timeout_page())
