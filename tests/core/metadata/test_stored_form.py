"""Every record is stored as it always was, byte for byte.

``stored_form.json`` holds collection, key and body of each record in ``RECORDS``. A change in it
is a change of what other versions of the program have stored.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from tidelog_core.metadata.client_metrics import ClientMetricsOverrides
from tidelog_core.metadata.coordination.consumer_groups import (
    ClassicProtocols,
    ConsumerGroupState,
    ConsumerMember,
    MemberState,
    TopicIdPartition,
)
from tidelog_core.metadata.coordination.group_configs import GroupConfigOverrides
from tidelog_core.metadata.coordination.groups import (
    CommittedOffset,
    GroupMember,
    GroupOffsets,
    GroupRecord,
)
from tidelog_core.metadata.coordination.member_pages import MemberPage
from tidelog_core.metadata.coordination.packed_members import unpack
from tidelog_core.metadata.coordination.share_groups import ShareGroupState, ShareMember
from tidelog_core.metadata.coordination.share_partitions import (
    RecordState,
    SharePartitionRecord,
    StateBatch,
)
from tidelog_core.metadata.coordination.transactions import (
    PendingOffsets,
    PendingOffsetsClaim,
    TransactionRecord,
    TransactionState,
)
from tidelog_core.metadata.cost_records import CostDay, CostHour
from tidelog_core.metadata.endpoints import BrokerEndpoint, plaintext_endpoints
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.erasures import KeyErasure, LocalErasure, ReplacedSegment, ReplicaErasure
from tidelog_core.metadata.records import (
    AckedBy,
    Broker,
    BrokerLease,
    ChainTombstone,
    Cluster,
    DeletedTopic,
    FunctionProgress,
    JobStart,
    NodeConfigOverrides,
    Partition,
    RestorationMark,
    ScrubOrphans,
    SegmentMeta,
    SegmentState,
    StepDownReason,
    Topic,
)
from tidelog_core.metadata.rewrite_claims import RewriteClaim
from tidelog_core.metadata.schema_records import (
    Referrer,
    SchemaContext,
    SchemaIdentity,
    SchemaSettings,
    SchemaSubject,
    SchemaText,
    SchemaUse,
    SubjectVersion,
)
from tidelog_core.metadata.security.acls import stored_acl
from tidelog_core.metadata.security.client_quotas import entity_quotas
from tidelog_core.metadata.security.delegation_tokens import DelegationToken
from tidelog_core.metadata.security.roles import Role
from tidelog_core.metadata.security.scram_users import ScramDecoySecret, UserScramCredential
from tidelog_core.metadata.store import Item, ItemKey
from tidelog_core.metadata.stores.commit import decode_body, encode_body
from tidelog_core.model import TopicPartition
from tidelog_core.quotas.quota_entity import QuotaEntity
from tidelog_core.schemas.model import Compatibility, Mode, Reference, SchemaType
from tidelog_core.security.acl import (
    Acl,
    AclOperation,
    AclPermission,
    PatternType,
    ResourceType,
)
from tidelog_core.security.scram_credentials import ScramCredential, ScramMechanism

GOLDEN = Path(__file__).with_name("stored_form.json")

T, S, R = UUID(int=0xA7), UUID(int=0x5E6 << 64), UUID("0badcafe-0000-4000-8000-00000000beef")
PLACED = frozenset({TopicIdPartition(T, 0), TopicIdPartition(T, 2), TopicIdPartition(S, 1)})
SOME = frozenset({TopicIdPartition(T, 5)})

SEGMENT: dict[str, Any] = {
    "topic_id": T,
    "partition": 12,
    "base_offset": 1000,
    "end_offset": 2000,
    "leader_epoch": 3,
    "segment_id": R,
    "size_bytes": 4096,
    "index_size_bytes": 128,
    "max_timestamp_ms": 1_700_000_000_123,
    "leader_epochs": ((0, 0), (3, 1500)),
    "chained_hash": "00ff" * 16,
    "created_ms": 1_700_000_000_456,
}
GROUP: dict[str, Any] = {
    "shard": 7,
    "group_id": "g/ü",
    "phase": "Stable",
    "phase_since_ms": 1_700_000_000_000,
    "generation": 5,
}
RECORDS: dict[str, Any] = {
    "cluster": Cluster(cluster_id="c-1"),
    "schema context": SchemaContext(context=".", last_id=7),
    "schema": SchemaText(
        context=".stage",
        schema_id=7,
        schema_type=SchemaType.AVRO,
        text='"int"',
        references=(Reference("User", "user", 1),),
    ),
    "schema with extras": SchemaText(
        context=".",
        schema_id=1,
        schema_type=SchemaType.PROTOBUF,
        text="syntax",
        metadata="{}",
        rule_set="{}",
    ),
    "schema identity": SchemaIdentity(
        context=".",
        guid=str(R),
        schema_id=7,
        uses=(SchemaUse("a-value", 1, 7), SchemaUse("b-value", 2, 7)),
    ),
    "schema subject": SchemaSubject(
        subject=":.stage:a-value",
        versions=(SubjectVersion(1, 7, True), SubjectVersion(2, 9)),
        referrers=(Referrer(2, ".", 11),),
    ),
    "schema settings": SchemaSettings(
        scope="a-value", compatibility=Compatibility.FULL_TRANSITIVE, mode=Mode.IMPORT
    ),
    "schema settings of everything": SchemaSettings(scope="__GLOBAL", normalize=True),
    "broker": Broker(
        broker_id=3, incarnation=R, endpoints=plaintext_endpoints("h.example", 9092), rack="r1"
    ),
    "broker without rack": Broker(
        broker_id=0, incarnation=R, endpoints=plaintext_endpoints("::1", 0)
    ),
    "broker with listeners": Broker(
        broker_id=3,
        incarnation=R,
        endpoints=(
            BrokerEndpoint("CLIENTS", "h.example", 9092),
            BrokerEndpoint("NODE", "10.0.0.1", 9093),
        ),
    ),
    "lease": BrokerLease(broker_id=3, incarnation=R, counter=99),
    "lease stepping down": BrokerLease(
        broker_id=3,
        incarnation=R,
        counter=100,
        step_down_reason=StepDownReason.DRAINING,
        wall_ms=1_700_000_000_789,
    ),
    "node config of all": NodeConfigOverrides(broker_id=None, configs={"num.partitions": "3"}),
    "node config": NodeConfigOverrides(broker_id=4, configs={"b": "2", "a": "ü"}),
    "client metrics": ClientMetricsOverrides(subscription="s", configs={"interval.ms": "100"}),
    "group config": GroupConfigOverrides(
        group_id="g", configs={"share.auto.offset.reset": "earliest"}
    ),
    "topic": Topic(
        name="orders", topic_id=T, partition_count=3, configs={"z": "1", "a": "2"}, created_ms=17
    ),
    "internal topic": Topic(
        name="__x", topic_id=S, partition_count=1, is_internal=True, created_ms=-1
    ),
    "partition": Partition(
        topic_id=T, partition=12, replicas=(2, 1), leader=-1, leader_epoch=0, isr=(1,)
    ),
    "partition reassigned": Partition(
        topic_id=T,
        partition=0,
        replicas=(1, 2, 3),
        leader=1,
        leader_epoch=9,
        isr=(1, 2),
        log_start_offset=50,
        adding=(3,),
        removing=(1,),
        restored_log_start=40,
    ),
    "partition diskless": Partition(
        topic_id=T,
        partition=12,
        replicas=(1,),
        leader=1,
        leader_epoch=9,
        isr=(1,),
        wal=(EpochChain(8, ChainName(2, S), 0), EpochChain(9, ChainName(1, R), 70)),
    ),
    "partition replicated again": Partition(
        topic_id=T,
        partition=12,
        replicas=(1, 2),
        leader=1,
        leader_epoch=10,
        isr=(1, 2),
        wal=(EpochChain(9, ChainName(1, R), 70),),
        acked_by=AckedBy.REPLICAS,
    ),
    "segment": SegmentMeta(**SEGMENT, state=SegmentState.COPY_STARTED),
    "segment rewritten": SegmentMeta(
        **SEGMENT,
        state=SegmentState.DELETE_STARTED,
        deletable_ms=1_700_000_009_999,
        rewrite_epoch=2,
        compacted_up_to=1999,
    ),
    "deleted topic": DeletedTopic(topic_id=T, name="orders", partition_count=3, deleted_ms=18),
    "chain tombstone": ChainTombstone(topic_id=T),
    "chain tombstone cleaned": ChainTombstone(topic_id=T, is_cleaned=True),
    "function progress": FunctionProgress(function="retention", resumes_after="orders/2"),
    "scrub orphans": ScrubOrphans(prefix="c/t/4/", first_seen_ms={"b.log": 5, "a.log": 6}),
    "restoration": RestorationMark(cluster_id="c-1"),
    "job start": JobStart(job="compaction", token="t-1", claimed_ms=19),
    "scram credential": UserScramCredential(
        user="a/b=c,ë",
        mechanism=ScramMechanism.SCRAM_SHA_256,
        credential=ScramCredential(
            salt=b"salt", stored_key=bytes(range(32)), server_key=bytes(32), iterations=4096
        ),
    ),
    "scram decoy secret": ScramDecoySecret(secret=bytes(range(32))),
    "role": Role(name="data-engineers", members=("Group:data", "User:CN=b,O=c")),
    "delegation token": DelegationToken(
        token_id="a-token_id",
        owner="alice",
        requester="bob,ë",
        renewers=("carol", "dave"),
        groups=("staff",),
        issued_ms=1_700_000_000_000,
        expires_ms=1_700_086_400_000,
        max_ms=1_700_604_800_000,
        digest=bytes(range(32)),
        credentials={
            mechanism: ScramCredential(
                salt=b"salt",
                stored_key=bytes(range(mechanism.key_size_bytes)),
                server_key=bytes(mechanism.key_size_bytes),
                iterations=4096,
            )
            for mechanism in ScramMechanism
        },
    ),
    "acl": stored_acl(
        Acl(
            ResourceType.TOPIC,
            PatternType.PREFIXED,
            "a/ë",
            "User:CN=b,O=c",
            "10.0.0.1",
            AclOperation.WRITE,
            AclPermission.DENY,
        )
    ),
    "client quotas": entity_quotas(
        QuotaEntity("a/ë", ""), {"producer_byte_rate": 5.0, "request_percentage": 0.5}, version=1
    ),
    "local erasure": LocalErasure(topic_id=T, partition=12),
    "local erasure honoured": LocalErasure(
        topic_id=T, partition=12, up_to=70, roll_to=60, honoured=(1, 3)
    ),
    "key erasure": KeyErasure(topic_id=T, partition=12, key_sha256="ab" * 32),
    "key erasure done": KeyErasure(
        topic_id=T,
        partition=12,
        key_sha256="ab" * 32,
        up_to=70,
        replicas=(
            ReplicaErasure(1, True, (ReplacedSegment(0, 10, 1), ReplacedSegment(10, 20, 2)), 3),
            ReplicaErasure(2),
        ),
    ),
    "rewrite claim": RewriteClaim(
        topic_id=T, partition=12, rewrite_epoch=2, holder=R, expires_ms=20
    ),
    "share partition": SharePartitionRecord(
        group_id="g/ü",
        topic_id=T,
        partition=12,
        state_epoch=1,
        leader_epoch=4,
        start_offset=100,
        batches=(
            StateBatch(100, 109, RecordState.ACKNOWLEDGED, 1),
            StateBatch(120, 120, RecordState.AVAILABLE, 2),
        ),
    ),
    "share partition not begun": SharePartitionRecord(group_id="g", topic_id=T, partition=0),
    "transaction": TransactionRecord(
        shard=7,
        transactional_id="tx/ü",
        producer_id=4000,
        producer_epoch=2,
        previous_producer_id=3999,
        next_producer_id=4001,
        last_producer_epoch=1,
        timeout_ms=60_000,
        state=TransactionState.PREPARE_COMMIT,
        partitions=frozenset(
            {TopicPartition("b", 1), TopicPartition("a", 2), TopicPartition("b", 0)}
        ),
        started_ms=21,
        updated_ms=22,
        client_version=2,
    ),
    "transaction not begun": TransactionRecord(
        shard=0,
        transactional_id="tx",
        producer_id=0,
        producer_epoch=-1,
        timeout_ms=1,
        updated_ms=23,
    ),
    "pending offsets": PendingOffsets(
        shard=7,
        group_id="g/ü",
        producer_id=4000,
        producer_epoch=2,
        offsets={
            ("b", T): {3: CommittedOffset(30, -1, "", 24), 1: CommittedOffset(10, 2, "m", 25)},
            ("a", S): {0: CommittedOffset(0, 0, "ü", 26)},
        },
    ),
    "offsets": GroupOffsets(
        group_id="g/ü",
        topic="orders",
        topic_id=T,
        page=2,
        partitions={
            130: CommittedOffset(30, -1, "", 24, 99),
            128: CommittedOffset(10, 2, "m", 25),
        },
    ),
    "classic group": GroupRecord(
        **GROUP,
        protocol_type="consumer",
        protocol_name="range",
        leader="m-1",
        members=(),
        stamp=3,
    ),
    "group of offsets": GroupRecord(
        **GROUP, protocol_type=None, protocol_name=None, leader=None, members=()
    ),
    "consumer group": GroupRecord(
        **GROUP,
        protocol_type="consumer",
        protocol_name=None,
        leader=None,
        members=(),
        consumer=ConsumerGroupState(assignment_epoch=4, topics_hash="0f" * 16, members=()),
    ),
    "share group": GroupRecord(
        **GROUP,
        protocol_type="share",
        protocol_name=None,
        leader=None,
        members=(),
        share=ShareGroupState(assignment_epoch=5, topics_hash="f0" * 16, members=()),
    ),
    "page of classic members": MemberPage(
        shard=7,
        group_id="g/ü",
        number=1,
        stamp=3,
        members={
            32: GroupMember(
                member_id="m-1",
                group_instance_id="i-1",
                client_id="c",
                client_host="/127.0.0.1",
                session_timeout_ms=45_000,
                rebalance_timeout_ms=60_000,
                protocols=(("range", b"\x00\x01"), ("sticky", b"")),
                assignment=b"\xff",
            )
        },
    ),
    "page of consumers": MemberPage(
        shard=7,
        group_id="g",
        number=0,
        stamp=4,
        members={
            0: ConsumerMember(
                member_id="m-1",
                instance_id="i-1",
                rack_id="r",
                client_id="c",
                client_host="/127.0.0.1",
                rebalance_timeout_ms=5,
                subscribed_topics=("a", "b"),
                subscribed_pattern="a.*",
                assignor="uniform",
                state=MemberState.UNREVOKED_PARTITIONS,
                epoch=4,
                previous_epoch=3,
                assigned=PLACED,
                revoking=SOME,
                target=SOME,
                classic=ClassicProtocols(session_timeout_ms=6, protocols=(("range", b"\x01"),)),
            ),
            5: ConsumerMember(member_id="m-2", assigned=SOME, target=SOME),
        },
        before={},
    ),
    "cost hour": CostHour(
        hour=491_000,
        writer="node-3",
        counts={"object-put": 7, "machine:i4i.large": 60_000},
        topic_counts={"orders/object-put": 7},
        added=("t-1", "t-2"),
    ),
    "sealed cost hour": CostHour(
        hour=491_000,
        writer="function-retention",
        counts={},
        topic_counts={},
        began_ms=1_767_600_000_001,
        is_sealed=True,
    ),
    "cost day": CostDay(
        day=20_458,
        writer="node-3",
        counts={"object-put": 7},
        topic_counts={"orders/object-put": 7},
        hours=0b101,
    ),
    "page of sharers": MemberPage(
        shard=0,
        group_id="g",
        number=0,
        stamp=0,
        members={},
        before={
            3: ShareMember(
                member_id="m-1",
                rack_id="r",
                client_id="c",
                client_host="/127.0.0.1",
                subscribed_topics=("a",),
                epoch=2,
                previous_epoch=1,
                assigned=PLACED,
                target=SOME,
            )
        },
    ),
}


def stored_form(record: Any) -> list[str]:
    """The item of a record: collection, key and the body's text."""
    return [*_names(record.item_id), encode_body(record.item_id, record.to_body())]


def _names(key: ItemKey) -> tuple[str, str]:
    return key.collection, key.key


def _unpacked(text: str) -> Any:
    """The body with its members unpacked: the packed bytes depend on the version of zlib."""
    body = json.loads(text)
    for field in ("members", "before"):
        if isinstance(body.get(field), list) and body[field]:
            *rest, packed = body[field]
            body[field] = [*rest, unpack(packed)]
    return body


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_is_stored_as_ever(name: str) -> None:
    collection, key, text = json.loads(GOLDEN.read_text())[name]
    now = stored_form(RECORDS[name])
    assert now[:2] == [collection, key]
    if isinstance(RECORDS[name], MemberPage):
        assert list(_unpacked(now[2]).items()) == list(_unpacked(text).items())
    else:
        assert now[2] == text


@pytest.mark.parametrize("name", RECORDS)
def test_what_was_stored_is_read(name: str) -> None:
    collection, key, text = json.loads(GOLDEN.read_text())[name]
    item_id = ItemKey(collection, key)
    read = type(RECORDS[name]).from_item(Item(item_id, 8, decode_body(item_id, text)))
    assert (read, read.version) == (RECORDS[name], 8)


def test_the_claim_on_pending_offsets_is_stored_as_ever() -> None:
    """It is written and checked, and never read."""
    claim = PendingOffsetsClaim(shard=7, broker_id=3, leader_epoch=4)
    assert stored_form(claim) == [
        "pending-offsets-claim",
        "0000000007",
        '{"broker_id":3,"leader_epoch":4}',
    ]
