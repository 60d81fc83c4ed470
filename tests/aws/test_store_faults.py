"""What holds while S3 and DynamoDB fail, between a real node and real servers.

Whatever goes wrong: what was acknowledged is there, the hot tail is written and read, no
segment leaves the disk before it is in the bucket whole, cold reads are right or an error
that clients retry, and when all is well again each segment is in the tier exactly once.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kio.schema.errors import ErrorCode

from tests.aws.credentials import CredentialsEndpoint
from tests.aws.faulty_stores import FaultyNode, faulty_node
from tests.support.store_proxy import StoreBehaviour
from tests.support.waiting import eventually
from tests.support.wire_client import WireClient

pytestmark = pytest.mark.slow  # tests/node/tier and tests/faults have most of it without AWS

HOLD_S = 0.3  # before a lost answer's connection ends: S3's callers would wait for long
WRITES = frozenset({"PUT", "POST", "DELETE"})


@pytest.fixture(scope="module")
def node(
    tmp_path_factory: pytest.TempPathFactory,
    ministack_endpoint: str,
    dynamodb_local_endpoint: str,
    credentials: CredentialsEndpoint,
) -> Iterator[FaultyNode]:
    """A node for all of these tests."""
    with faulty_node(
        tmp_path_factory.mktemp("faults"),
        s3_endpoint=ministack_endpoint,
        dynamodb_endpoint=dynamodb_local_endpoint,
    ) as running:
        topic = running.create()
        running.produce(topic, 1)
        running.consume(topic)  # The group coordinator is set up by the first who asks for it.
        yield running


@pytest.fixture(autouse=True)
def _well_again(node: FaultyNode) -> Iterator[None]:
    yield
    node.behave()


def cold_topic(node: FaultyNode) -> str:
    """Return a topic of which all but the active segment are in the tier and not cached."""
    topic = node.create()
    node.produce(topic, 50)
    node.wait_drained(topic)
    return topic


def fetch_cold(node: FaultyNode, topic: str) -> ErrorCode:
    """Fetch from the start of the tier and return the error; what came must be right."""
    with WireClient(node.process.port) as client:
        client.socket.settimeout(60)
        answer = client.fetch(topic, 0)
    code: ErrorCode = answer.error_code
    if answer.records:
        assert node.produced[f"{topic}-0"][0] in bytes(answer.records)
    else:
        assert code in {ErrorCode.none, ErrorCode.kafka_storage_error}
    return code


def check_under_fault(
    node: FaultyNode, *, s3: StoreBehaviour | None = None, dynamodb: StoreBehaviour | None = None
) -> None:
    """Write and read under the fault, then without, and check what is where."""
    topic, cold = node.create(), cold_topic(node)
    proxy = node.dynamodb if s3 is None else node.s3
    proxy.counts.clear()
    node.behave(s3=s3 or StoreBehaviour(), dynamodb=dynamodb or StoreBehaviour())
    for _ in range(2):
        node.produce(topic, 40)
        node.consume(topic, offset=len(node.produced[f"{topic}-0"]) - 5)
        fetch_cold(node, cold)
        node.check_evicted(topic)
    node.consume(cold)
    node.behave()
    node.wait_drained(topic)
    node.consume(topic)
    node.check_tier(topic)
    fault = s3 or dynamodb
    assert fault is not None
    assert fault.delay_s or sum(proxy.counts.values()) > proxy.counts["carried out"]


S3_FAULTS = {
    "refuses with SlowDown": StoreBehaviour(throttled_part=0.5),
    "loses answers": StoreBehaviour(lost_part=0.4, hold_s=HOLD_S),
    "loses most answers to writes": StoreBehaviour(lost_part=0.6, hold_s=HOLD_S, methods=WRITES),
    "truncates answers": StoreBehaviour(truncated_part=0.5),
    "resets connections": StoreBehaviour(reset_part=0.4),
    "is slow": StoreBehaviour(delay_s=0.4),
}
DYNAMODB_FAULTS = {
    "throttles": StoreBehaviour(throttled_part=0.4),
    "loses answers": StoreBehaviour(lost_part=0.3, hold_s=HOLD_S),
    "truncates answers": StoreBehaviour(truncated_part=0.3),
    "resets connections": StoreBehaviour(reset_part=0.3),
    "is slow": StoreBehaviour(delay_s=0.3),
}
ALL_AT_ONCE = StoreBehaviour(
    throttled_part=0.15, lost_part=0.15, truncated_part=0.15, reset_part=0.15, hold_s=HOLD_S
)


def test_s3_fails_in_every_way_and_nothing_is_lost_doubled_or_evicted_too_soon(
    node: FaultyNode,
) -> None:
    check_under_fault(node, s3=ALL_AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("fault", S3_FAULTS)
def test_s3_fails_in_one_way_and_nothing_is_lost_doubled_or_evicted_too_soon(
    node: FaultyNode, fault: str
) -> None:
    check_under_fault(node, s3=S3_FAULTS[fault])


def test_dynamodb_fails_in_every_way_and_nothing_is_lost_doubled_or_evicted_too_soon(
    node: FaultyNode,
) -> None:
    check_under_fault(node, dynamodb=ALL_AT_ONCE)


@pytest.mark.slow
@pytest.mark.parametrize("fault", DYNAMODB_FAULTS)
def test_dynamodb_fails_in_one_way_and_nothing_is_lost_doubled_or_evicted_too_soon(
    node: FaultyNode, fault: str
) -> None:
    check_under_fault(node, dynamodb=DYNAMODB_FAULTS[fault])


def test_a_node_killed_while_answers_of_s3_get_lost_leaves_nothing_half_done(
    node: FaultyNode,
) -> None:
    topic = node.create()
    node.behave(s3=StoreBehaviour(lost_part=0.5, hold_s=HOLD_S, methods=WRITES))
    node.produce(topic, 80)
    node.process.kill()
    node.process.start()
    node.check_evicted(topic)
    node.produce(topic, 50)
    node.behave()
    node.wait_drained(topic)
    node.consume(topic)
    node.check_tier(topic)


def test_while_s3_is_away_the_tail_is_served_and_cold_reads_are_retriable(
    node: FaultyNode,
) -> None:
    topic, cold = node.create(), cold_topic(node)
    node.behave(s3=StoreBehaviour(is_cut=True))
    node.produce(topic, 60)
    node.consume(topic)
    assert fetch_cold(node, cold) is ErrorCode.kafka_storage_error
    assert node.local_segments(topic)[0] == 0
    assert len(node.local_segments(topic)) >= 3
    node.behave()
    node.consume(cold)
    node.wait_drained(topic)
    node.consume(topic)
    node.check_tier(topic)


def test_credentials_that_end_before_their_time_are_looked_for_anew(
    node: FaultyNode, credentials: CredentialsEndpoint
) -> None:
    """S3 refuses them until that is told, DynamoDB once: the lease must outlast that."""
    topic, cold = node.create(), cold_topic(node)
    for proxy in (node.s3, node.dynamodb):
        proxy.counts.clear()
    second = StoreBehaviour(valid_token="second")
    node.behave(s3=second)
    node.produce(topic, 60)
    node.consume(topic)
    assert fetch_cold(node, cold) is ErrorCode.kafka_storage_error
    # An alarm looks for lines like this one.
    eventually(lambda: "object store refuses bucket=" in node.process.log, "the refusal is told")
    refusals = [
        line for line in node.process.log.splitlines() if "object store refuses bucket=" in line
    ]
    assert all(" ERROR " in line and "ExpiredToken" in line for line in refusals)
    node.behave(s3=second, dynamodb=second)
    eventually(lambda: node.dynamodb.counts["expired"] > 0, "DynamoDB refuses too")
    credentials.token = "second"
    node.consume(cold)
    node.wait_drained(topic)
    node.consume(topic)
    node.check_tier(topic)
    for proxy in (node.s3, node.dynamodb):
        assert proxy.counts["expired"] > 0
        assert proxy.counts["carried out"] > 0
