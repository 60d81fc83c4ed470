"""Tidelog's Python SDK: write, read and administer a log that speaks the Kafka protocol.

A name is imported on first use: the command line needs few of them, and importing the
message classes takes half a second.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tidelog_core.model import TopicPartition
    from tidelog_core.quotas.quota_entity import QuotaEntity
    from tidelog_core.security.acl import (
        Acl,
        AclFilter,
        AclOperation,
        AclPermission,
        PatternType,
        ResourceType,
    )

    from tidelog.admin import Admin
    from tidelog.administering.results import (
        ClusterDescription,
        ConfigEntry,
        ConfigSynonym,
        CreatedTopic,
        DelegationToken,
        GroupDescription,
        GroupListing,
        GroupMember,
        HangingTransaction,
        ListedOffset,
        LogDir,
        LogDirReplica,
        NewTopic,
        NodeDescription,
        OffsetSpec,
        PartitionDescription,
        PartitionLag,
        ProducerDescription,
        QuotaUse,
        Reassignment,
        TopicDescription,
        TopicListing,
        TransactionDescription,
        TransactionListing,
        UserDescription,
    )
    from tidelog.administering.sync_admin import SyncAdmin
    from tidelog.arrow.schemas.bucket_schemas import BucketSchemas
    from tidelog.arrow.values.schema_values import SchemaDecoder
    from tidelog.arrow_scan import scan_arrow
    from tidelog.bucket_reader import BucketOffsets, BucketReader
    from tidelog.client_factory import ClientFactory
    from tidelog.consumer import Consumer
    from tidelog.consuming.records import (
        ConsumerRecord,
        GroupMetadata,
        OffsetAndMetadata,
        OffsetAndTimestamp,
    )
    from tidelog.consuming.subscription import RebalanceListener, SubscriptionPattern
    from tidelog.consuming.sync_consumer import SyncConsumer
    from tidelog.errors import TidelogError
    from tidelog.producer import Producer
    from tidelog.producing.batch import Delivery, RecordMetadata
    from tidelog.producing.encoded import EncodedRecords
    from tidelog.producing.prepared import PreparedTransaction
    from tidelog.producing.sync_producer import SyncDelivery, SyncProducer, SyncTransaction
    from tidelog.producing.transactions import Transaction
    from tidelog.tokens.iam_token import IamToken
    from tidelog.tokens.token_file import TokenFile
    from tidelog.wire.sasl import Sasl, SaslToken

__all__ = [
    "Acl",
    "AclFilter",
    "AclOperation",
    "AclPermission",
    "Admin",
    "BucketOffsets",
    "BucketReader",
    "BucketSchemas",
    "ClientFactory",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSynonym",
    "Consumer",
    "ConsumerRecord",
    "CreatedTopic",
    "DelegationToken",
    "Delivery",
    "EncodedRecords",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "GroupMetadata",
    "HangingTransaction",
    "IamToken",
    "ListedOffset",
    "LogDir",
    "LogDirReplica",
    "NewTopic",
    "NodeDescription",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "PartitionDescription",
    "PartitionLag",
    "PatternType",
    "PreparedTransaction",
    "Producer",
    "ProducerDescription",
    "QuotaEntity",
    "QuotaUse",
    "Reassignment",
    "RebalanceListener",
    "RecordMetadata",
    "ResourceType",
    "Sasl",
    "SaslToken",
    "SchemaDecoder",
    "SubscriptionPattern",
    "SyncAdmin",
    "SyncConsumer",
    "SyncDelivery",
    "SyncProducer",
    "SyncTransaction",
    "TidelogError",
    "TokenFile",
    "TopicDescription",
    "TopicListing",
    "TopicPartition",
    "Transaction",
    "TransactionDescription",
    "TransactionListing",
    "UserDescription",
    "scan_arrow",
]

_NAMES_OF = {
    "tidelog_core.model": ("TopicPartition",),
    "tidelog_core.quotas.quota_entity": ("QuotaEntity",),
    "tidelog_core.security.acl": (
        "Acl",
        "AclFilter",
        "AclOperation",
        "AclPermission",
        "PatternType",
        "ResourceType",
    ),
    "tidelog.admin": ("Admin",),
    "tidelog.arrow.schemas.bucket_schemas": ("BucketSchemas",),
    "tidelog.arrow.values.schema_values": ("SchemaDecoder",),
    "tidelog.arrow_scan": ("scan_arrow",),
    "tidelog.bucket_reader": ("BucketOffsets", "BucketReader"),
    "tidelog.client_factory": ("ClientFactory",),
    "tidelog.administering.sync_admin": ("SyncAdmin",),
    "tidelog.consumer": ("Consumer",),
    "tidelog.consuming.records": (
        "ConsumerRecord",
        "GroupMetadata",
        "OffsetAndMetadata",
        "OffsetAndTimestamp",
    ),
    "tidelog.consuming.subscription": ("RebalanceListener", "SubscriptionPattern"),
    "tidelog.consuming.sync_consumer": ("SyncConsumer",),
    "tidelog.errors": ("TidelogError",),
    "tidelog.producer": ("Producer",),
    "tidelog.tokens.iam_token": ("IamToken",),
    "tidelog.tokens.token_file": ("TokenFile",),
    "tidelog.wire.sasl": ("Sasl", "SaslToken"),
    "tidelog.producing.batch": (
        "Delivery",
        "RecordMetadata",
    ),
    "tidelog.producing.encoded": ("EncodedRecords",),
    "tidelog.producing.prepared": ("PreparedTransaction",),
    "tidelog.producing.transactions": ("Transaction",),
    "tidelog.producing.sync_producer": ("SyncDelivery", "SyncProducer", "SyncTransaction"),
}
_MODULE_OF = dict.fromkeys(__all__, "tidelog.administering.results")  # unless said above
_MODULE_OF |= {name: module for module, names in _NAMES_OF.items() for name in names}


def __getattr__(name: str) -> object:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(_MODULE_OF[name]), name)
    return value
