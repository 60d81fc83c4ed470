"""What the tests of disks in trouble share."""

from __future__ import annotations

from kio.schema.errors import ErrorCode

from tests.support.batches import batch_of
from tests.support.node_process import NodeProcess
from tests.support.wire_client import WireClient


def values(count: int, *, start: int = 0) -> list[bytes]:
    """Return records of 100 bytes that tell their number."""
    return [b"%06d" % number + b"x" * 94 for number in range(start, start + count)]


def lines(node: NodeProcess, *levels: str) -> list[str]:
    """Return what the node has logged at these levels, but for leases on a busy machine."""
    said = [line for line in node.log.splitlines() if any(level in line for level in levels)]
    return [line for line in said if ".membership." not in line]


def produced(node: NodeProcess, topic: str) -> ErrorCode:
    """Produce a batch to the topic's first partition; return the answer's code."""
    with WireClient(node.port) as client:
        code: ErrorCode = client.produce(topic, batch_of(b"x")).error_code
        return code
