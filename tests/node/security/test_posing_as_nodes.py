"""What only nodes may do: a client that says it is one gets nowhere (CVE-2018-1288)."""

from __future__ import annotations

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from confluent_kafka.admin import AdminClient, NewTopic
from kio.schema.add_partitions_to_txn.v5 import request as add_request
from kio.schema.errors import ErrorCode
from kio.schema.fetch.v15 import request as fetch_request
from kio.schema.write_txn_markers.v1 import request as markers_request
from tidelog_core.metadata.endpoints import NODE
from tidelog_core.wire_messages import build
from tidelog_node.security.node_identity import NodeIdentity, generate_identity
from tidelog_node.wire.gateway_append import API_KEY as GATEWAY_APPEND
from tidelog_node.wire.gateway_append import (
    VERSION_MAX,
    GatewayAppend,
    GatewaySlice,
    encode_request,
    parse_answer,
)

from tests.support.batches import batch_of
from tests.support.node_peers import connect_as, connected_as, image_of, register_peer
from tests.support.node_process import NodeProcess
from tests.support.replicated_cluster import replicated_cluster, stopped
from tests.support.waiting import eventually
from tests.support.wire_client import (
    WireClient,
    api_versions_request,
    frame,
    milliseconds,
    produce_body,
)

LATEST_EPOCH = 2**62


@pytest.fixture
def node(tmp_path: Path) -> Iterator[NodeProcess]:
    with NodeProcess(tmp_path / "node") as node:
        yield node


def store_of(node: NodeProcess) -> Path:
    return node.data_dir / "metadata.db"


def follower_fetch(
    topic_id: UUID, offset: int, *, replica_id: int, session: tuple[int, int] = (0, -1)
) -> Any:
    """Return the fetch of a follower that has registered later than anybody knows."""
    partition = build(
        fetch_request.FetchPartition,
        partition=0,
        current_leader_epoch=-1,
        fetch_offset=offset,
        last_fetched_epoch=-1,
        log_start_offset=0,
        partition_max_bytes=1_000,
    )
    return build(
        fetch_request.FetchRequest,
        replica_state=build(
            fetch_request.ReplicaState, replica_id=replica_id, replica_epoch=LATEST_EPOCH
        ),
        max_wait=milliseconds(0),
        min_bytes=0,
        session_id=session[0],
        session_epoch=session[1],
        topics=(build(fetch_request.FetchTopic, topic_id=topic_id, partitions=(partition,)),),
    )


def test_no_client_acknowledges_records_in_the_name_of_followers(tmp_path: Path) -> None:
    database = tmp_path / "metadata.db"
    with replicated_cluster(tmp_path, metadata_store=f"sqlite://{database}") as cluster:
        cluster.create("t", min_insync_replicas="2")
        cluster.produce("t", [b"first"])
        cluster.wait_isr("t", {1, 2, 3})
        leader = cluster.node_leading("t")
        two, three = cluster.followers("t")
        topic_id = image_of(database).topics["t"].topic_id
        with WireClient(leader.port) as producer, WireClient(leader.port) as poser:
            with stopped(two), stopped(three):
                body = produce_body("t", batch_of(b"second"), acks=-1)
                producer.send(frame(0, 8, 1, body, tags=b""))
                for follower in (two, three):
                    for session in ((0, -1), (0, 0)):
                        request = follower_fetch(
                            topic_id, 2, replica_id=follower.broker_id, session=session
                        )
                        response = poser.call(request)
                        (partition,) = response.responses[0].partitions
                        assert partition.error_code is ErrorCode.topic_authorization_failed
                        assert not partition.records
                        assert response.session_id == 0
                acknowledged, _, _ = select.select([producer.socket], (), (), 0.5)
                assert not acknowledged
            producer.receive()  # From those that have it.


def test_no_client_has_a_leader_append_what_a_gateway_has(tmp_path: Path) -> None:
    one = GatewaySlice(UUID(int=1), 0, 112, 100, 0, 9, -1, 1_000, None)
    request = encode_request(GatewayAppend(UUID(int=2), 1, 0, [one]), 7)
    # A node without diskless topics serves nobody's gateway.
    config = {"diskless.gateways.enable": "true"}
    with NodeProcess(tmp_path / "node", config=config) as node:
        with WireClient(node.port) as client:
            client.send(request)
            assert client.is_closed_by_node()
        identity = register_peer(store_of(node), 2)
        with connected_as(identity, store_of(node), 1) as peer:
            peer.send(request)
            # A node's request is carried out, and says which partition is not known.
            (result,) = parse_answer(memoryview(peer.receive())[4:], 1)
            assert result.error_code
            assert not result.is_referenced


def test_other_nodes_are_told_which_requests_of_gateways_a_leader_takes(node: NodeProcess) -> None:
    identity = register_peer(store_of(node), 2)
    with WireClient(node.port) as client, connected_as(identity, store_of(node), 1) as peer:
        told = [
            {one.api_key: one.max_version for one in each.call(api_versions_request()).api_keys}
            for each in (client, peer)
        ]
    assert GATEWAY_APPEND not in told[0]
    assert told[1][GATEWAY_APPEND] == VERSION_MAX


def test_nodes_replicate_encrypted_if_one_of_them_wants_it(tmp_path: Path) -> None:
    config = {"inter.broker.encryption.enable": "true"}
    with replicated_cluster(tmp_path) as cluster:
        cluster.create("t", min_insync_replicas="2")
        acked = cluster.produce("t", [b"%d" % number for number in range(100)])
        cluster.wait_isr("t", {1, 2, 3})
        # Whichever end it is: the next process of one node insists.
        changed = cluster.followers("t")[0]
        changed.stop()
        changed.config.update(config)
        changed.start()
        cluster.wait_isr("t", {1, 2, 3})
        acked |= cluster.produce("t", [b"%d" % number for number in range(100, 200)])
        first = cluster.leader("t")
        cluster.nodes[first].kill()
        cluster.wait_leader("t", other_than=first)
        assert cluster.consume("t", 200) == acked


def test_only_nodes_of_the_cluster_get_through_the_node_listener(node: NodeProcess) -> None:
    with pytest.raises((OSError, EOFError)):
        connect_as(generate_identity(2), store_of(node), 1)
    known = register_peer(store_of(node), 2)
    with connected_as(known, store_of(node), 1):
        pass
    # Another process under the same id replaces it.
    register_peer(store_of(node), 2)
    eventually(lambda: is_refused(known, node), "the one before is refused")


def test_a_plain_connection_to_the_node_listener_is_closed(node: NodeProcess) -> None:
    endpoint = image_of(store_of(node)).brokers[1].endpoint_of(NODE)
    assert endpoint is not None
    with WireClient(endpoint.port) as client:
        client.send(frame(18, 0, 1, b"", tags=b""))
        # An alert of TLS, perhaps, but no answer.
        assert client.socket.recv(100)[:1] in {b"", b"\x15"}
    with WireClient(node.port) as client:
        client.send(frame(18, 0, 1, b"", tags=b""))
        assert client.receive()


def test_a_node_follows_in_its_own_name_only(node: NodeProcess) -> None:
    topic_id = create_topic(node, "t")
    identity = register_peer(store_of(node), 2)
    with connected_as(identity, store_of(node), 1) as peer:

        def follows(broker_id: int) -> ErrorCode:
            response = peer.call(follower_fetch(topic_id, 0, replica_id=broker_id))
            code = response.responses[0].partitions[0].error_code
            assert isinstance(code, ErrorCode)
            return code

        assert follows(2) is not ErrorCode.topic_authorization_failed
        assert follows(3) is ErrorCode.topic_authorization_failed
        # From now on another process is broker 2; this one has nothing to say any more.
        register_peer(store_of(node), 2)
        eventually(lambda: follows(2) is ErrorCode.topic_authorization_failed, "it is revoked")


def test_only_nodes_add_partitions_and_commit_for_others(node: NodeProcess) -> None:
    create_topic(node, "t")
    identity = register_peer(store_of(node), 2)
    with WireClient(node.port) as client, connected_as(identity, store_of(node), 1) as peer:
        added = build(
            add_request.AddPartitionsToTxnRequest,
            transactions=(
                build(
                    add_request.AddPartitionsToTxnTransaction,
                    transactional_id="x",
                    producer_id=1,
                    producer_epoch=0,
                    verify_only=True,
                    topics=(build(add_request.AddPartitionsToTxnTopic, name="t", partitions=(0,)),),
                ),
            ),
        )
        refused = client.call(added)
        assert refused.error_code is ErrorCode.cluster_authorization_failed
        assert refused.results_by_transaction == ()
        assert peer.call(added).error_code is ErrorCode.none
        assert write_marker(client, is_commit=True) is ErrorCode.cluster_authorization_failed
        # As an administrator aborts a transaction that hangs.
        assert write_marker(client, is_commit=False) is ErrorCode.none
        assert write_marker(peer, is_commit=True) is ErrorCode.none


def create_topic(node: NodeProcess, name: str) -> UUID:
    """Create a topic with a partition; return its id."""
    admin = AdminClient({"bootstrap.servers": node.address})
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(60)
    return image_of(store_of(node)).topics[name].topic_id


def is_refused(identity: NodeIdentity, node: NodeProcess) -> bool:
    try:
        connect_as(identity, store_of(node), 1).socket.close()
    except (OSError, EOFError):
        return True
    return False


def write_marker(client: WireClient, *, is_commit: bool) -> ErrorCode:
    """Write the end of producer 7's transaction to the topic; return the error."""
    topic = build(markers_request.WritableTxnMarkerTopic, name="t", partition_indexes=(0,))
    marker = build(
        markers_request.WritableTxnMarker,
        producer_id=7,
        producer_epoch=0,
        transaction_result=is_commit,
        topics=(topic,),
        coordinator_epoch=0,
    )
    response = client.call(build(markers_request.WriteTxnMarkersRequest, markers=(marker,)))
    code = response.markers[0].topics[0].partitions[0].error_code
    assert isinstance(code, ErrorCode)
    return code
