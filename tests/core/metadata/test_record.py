"""A declared record comes back as it was stored, and damage is named."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from enum import Enum
from functools import cache
from operator import itemgetter
from typing import Any
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.coordination.consumer_groups import ConsumerGroupState
from tidelog_core.metadata.coordination.groups import CommittedOffset
from tidelog_core.metadata.coordination.share_groups import ShareMember
from tidelog_core.metadata.coordination.share_partitions import RecordState, StateBatch
from tidelog_core.metadata.endpoints import PORT_MAX, BrokerEndpoint
from tidelog_core.metadata.epoch_chains import ChainName, EpochChain
from tidelog_core.metadata.erasures import ReplacedSegment, ReplicaErasure
from tidelog_core.metadata.fields import StoredField
from tidelog_core.metadata.items import ITEMS
from tidelog_core.metadata.record import Record, stored_fields
from tidelog_core.metadata.schema_records import Referrer, SchemaUse, SubjectVersion
from tidelog_core.metadata.security.acls import acl_id
from tidelog_core.metadata.security.client_quotas import quota_id
from tidelog_core.metadata.store import Item, ItemKey
from tidelog_core.metadata.stores.commit import encode_body
from tidelog_core.model import INT32_MAX, INT64_MAX, TopicPartition
from tidelog_core.quotas.quota_entity import QuotaEntity
from tidelog_core.schemas.model import Reference
from tidelog_core.security.acl import Acl, AclOperation, AclPermission, PatternType, ResourceType
from tidelog_core.security.scram_credentials import ScramCredential, ScramMechanism

RECORDS = [kind.value for kind in ITEMS if not isinstance(kind.value, ItemKey)]

AN_ENTITY = QuotaEntity("ann", "")
AN_ACL = Acl(
    ResourceType.GROUP,
    PatternType.LITERAL,
    "g",
    "User:*",
    "*",
    AclOperation.READ,
    AclPermission.ALLOW,
)

NUMBERS = st.integers(0, INT64_MAX)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
NAMES = TEXTS.filter(bool)
PORTS = st.integers(0, PORT_MAX)
HASHES = st.text("0123456789abcdef", min_size=32, max_size=32)
OFFSETS = st.builds(CommittedOffset, NUMBERS, st.integers(-1), TEXTS, NUMBERS)
PAGES = st.dictionaries(
    st.integers(0, 100),
    st.builds(ShareMember, member_id=NAMES, rack_id=st.none() | TEXTS, epoch=NUMBERS),
    max_size=3,
)
STATE = {"assignment_epoch": NUMBERS, "topics_hash": HASHES, "members": st.just(())}


# Of fields whose type does not say how they are stored.
def credentials_of(mechanism: ScramMechanism) -> st.SearchStrategy[ScramCredential]:
    keys = st.binary(min_size=mechanism.key_size_bytes, max_size=mechanism.key_size_bytes)
    return st.builds(
        ScramCredential,
        salt=st.binary(max_size=40),
        stored_key=keys,
        server_key=keys,
        iterations=st.integers(4096, 16_384),
    )


def rows_of(row: type[Any], *values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(st.tuples(*values), max_size=3).map(lambda rows: tuple(row(*r) for r in rows))


OWN: dict[str, st.SearchStrategy[Any]] = {
    "Broker.endpoints": st.dictionaries(NAMES, st.tuples(TEXTS, PORTS), min_size=1).map(
        lambda found: tuple(BrokerEndpoint(name, *address) for name, address in found.items())
    ),
    "GroupConfigOverrides.configs": st.just({"share.auto.offset.reset": "earliest"}),
    "ClientMetricsOverrides.configs": st.just({"interval.ms": "100"}),
    "KeyErasure.replicas": st.lists(
        st.builds(
            ReplicaErasure,
            NUMBERS,
            st.booleans(),
            st.lists(st.builds(ReplacedSegment, NUMBERS, NUMBERS, NUMBERS)).map(tuple),
            NUMBERS,
        )
    ).map(tuple),
    "Partition.wal": st.lists(
        st.tuples(st.integers(0, INT32_MAX), st.integers(0, INT32_MAX), st.uuids(), NUMBERS),
        max_size=3,
        unique_by=itemgetter(0),
    ).map(
        lambda rows: tuple(
            EpochChain(epoch, ChainName(broker_id, chain_id), first_offset)
            for epoch, broker_id, chain_id, first_offset in zip(
                sorted(row[0] for row in rows),
                [row[1] for row in rows],
                [row[2] for row in rows],
                sorted(row[3] for row in rows),
                strict=True,
            )
        )
    ),
    "ScramDecoySecret.secret": st.binary(min_size=32, max_size=32),
    "SharePartitionRecord.start_offset": st.integers(0, 1000),
    "SharePartitionRecord.batches": st.just((StateBatch(2000, 2009, RecordState.ARCHIVED, 2),)),
    "TransactionRecord.partitions": st.frozensets(st.builds(TopicPartition, TEXTS, NUMBERS)),
    "PendingOffsets.offsets": st.dictionaries(
        st.tuples(TEXTS, st.uuids()), st.dictionaries(NUMBERS, OFFSETS, max_size=3), max_size=3
    ),
    "GroupOffsets.partitions": st.dictionaries(NUMBERS, OFFSETS, max_size=5),
    "GroupOffsets.topic": NAMES,
    "GroupRecord.consumer": st.none() | st.builds(ConsumerGroupState, **STATE),
    "GroupRecord.share": st.none(),
    "GroupRecord.members": st.just(()),
    "MemberPage.members": PAGES,
    "UserScramCredential.mechanism": st.just(ScramMechanism.SCRAM_SHA_256),
    "UserScramCredential.credential": credentials_of(ScramMechanism.SCRAM_SHA_256),
    "DelegationToken.digest": st.binary(min_size=32, max_size=32),
    "DelegationToken.credentials": st.fixed_dictionaries(
        {mechanism: credentials_of(mechanism) for mechanism in ScramMechanism}
    ),
    "MemberPage.before": st.none() | PAGES,
    "Role.name": st.from_regex(r"[a-zA-Z0-9._-]{1,9}", fullmatch=True),
    "Role.members": st.lists(TEXTS.filter(lambda name: name not in ("", "*"))).map(
        lambda names: tuple(f"User:{name}" for name in names)
    ),
    "StoredAcl.acl_id": st.just(acl_id(AN_ACL)),
    "StoredAcl.acl": st.just(AN_ACL),
    "SchemaText.references": rows_of(Reference, TEXTS, TEXTS, NUMBERS),
    "SchemaIdentity.uses": rows_of(SchemaUse, TEXTS, NUMBERS, NUMBERS),
    "SchemaSubject.versions": rows_of(SubjectVersion, NUMBERS, NUMBERS, st.booleans()),
    "SchemaSubject.referrers": rows_of(Referrer, NUMBERS, TEXTS, NUMBERS),
    "EntityQuotas.quota_id": st.just(quota_id(AN_ENTITY)),
    "EntityQuotas.entity": st.just(AN_ENTITY),
    "EntityQuotas.values": st.dictionaries(
        st.sampled_from(["request_percentage", "controller_mutation_rate"]),
        st.floats(min_value=1e-9, max_value=1e9),
        min_size=1,
    ),
}


def values_of(record: type[Record], field: StoredField) -> st.SearchStrategy[Any]:
    own = OWN.get(f"{record.__name__}.{field.field.name}")
    if own is not None:
        return own
    found = _by_type(field)
    return st.none() | found if field.is_optional else found


def _by_type(field: StoredField) -> st.SearchStrategy[Any]:
    if field.type is int:
        return st.integers(0 if field.is_in_key else field.at_least, INT64_MAX)
    if isinstance(field.type, type) and issubclass(field.type, Enum):
        return st.sampled_from(field.type)
    return {
        bool: st.booleans(),
        str: NAMES,
        UUID: st.uuids(),
        Mapping[str, int]: st.dictionaries(TEXTS, NUMBERS),
        Mapping[str, str]: st.dictionaries(TEXTS, TEXTS),
        tuple[int, ...]: st.lists(NUMBERS).map(tuple),
        tuple[str, ...]: st.lists(TEXTS).map(tuple),
        tuple[tuple[int, int], ...]: st.lists(st.tuples(NUMBERS, NUMBERS)).map(tuple),
    }[field.type]


@cache  # To make a strategy takes longer than to draw from it.
def records_of(record: type[Record]) -> st.SearchStrategy[Any]:
    fields = {field.field.name: values_of(record, field) for field in stored_fields(record)}
    return st.builds(record, **fields)


def stored(record: Record) -> Item:
    key = record.item_id
    return Item(key, 7, json.loads(encode_body(key, record.to_body())))


@pytest.mark.parametrize("declared", RECORDS, ids=lambda declared: declared.__name__)
@settings(max_examples=15)
@given(st.data())
def test_a_record_comes_back_as_it_was_stored(declared: type[Record], data: st.DataObject) -> None:
    record = data.draw(records_of(declared))
    read = declared.from_item(stored(record))
    assert (read, read.version) == (record, 7)
    assert encode_body(read.item_id, read.to_body()) == encode_body(
        record.item_id, record.to_body()
    )


@pytest.mark.parametrize("declared", RECORDS, ids=lambda declared: declared.__name__)
@settings(max_examples=15)
@given(st.data())
def test_a_damaged_field_is_named(declared: type[Record], data: st.DataObject) -> None:
    item = stored(data.draw(records_of(declared)))
    name = data.draw(st.sampled_from(sorted(item.body)))
    damaged = [{**item.body, name: value} for value in (1.5, [1.5], {"a": 1.5})]
    if name not in {field.name for field in stored_fields(declared) if field.may_lack}:
        damaged.append({field: value for field, value in item.body.items() if field != name})
    for body in damaged:
        with pytest.raises(CorruptItem, match=name):
            declared.from_item(dataclasses.replace(item, body=body))
    with pytest.raises(CorruptItem, match="unknown fields: of_tomorrow"):
        declared.from_item(dataclasses.replace(item, body={**item.body, "of_tomorrow": 1}))


@pytest.mark.parametrize("declared", RECORDS, ids=lambda declared: declared.__name__)
@settings(max_examples=15)
@given(st.data())
def test_an_item_under_another_records_key_is_damaged(
    declared: type[Record], data: st.DataObject
) -> None:
    item = stored(data.draw(records_of(declared)))
    elsewhere = ItemKey(f"x{item.id.collection}", item.id.key)
    with pytest.raises(CorruptItem, match=r"holds another item|the key is not"):
        declared.from_item(dataclasses.replace(item, id=elsewhere))
