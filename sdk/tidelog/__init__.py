"""Tidelog's Python SDK: write, read and administer a log that speaks the Kafka protocol."""

from __future__ import annotations

from tidelog_core.model import TopicPartition

from tidelog.admin import Admin
from tidelog.administering.results import (
    ClusterDescription,
    ConfigEntry,
    ConfigSynonym,
    CreatedTopic,
    GroupDescription,
    GroupListing,
    GroupMember,
    ListedOffset,
    LogDir,
    LogDirReplica,
    NewTopic,
    NodeDescription,
    OffsetSpec,
    PartitionDescription,
    TopicDescription,
    TopicListing,
)
from tidelog.consumer import Consumer
from tidelog.consuming.records import ConsumerRecord, OffsetAndMetadata, OffsetAndTimestamp
from tidelog.consuming.subscription import RebalanceListener
from tidelog.errors import TidelogError
from tidelog.producer import Producer
from tidelog.producing.batch import Delivery, RecordMetadata
from tidelog.sync import SyncAdmin, SyncConsumer, SyncDelivery, SyncProducer

__all__ = [
    "Admin",
    "ClusterDescription",
    "ConfigEntry",
    "ConfigSynonym",
    "Consumer",
    "ConsumerRecord",
    "CreatedTopic",
    "Delivery",
    "GroupDescription",
    "GroupListing",
    "GroupMember",
    "ListedOffset",
    "LogDir",
    "LogDirReplica",
    "NewTopic",
    "NodeDescription",
    "OffsetAndMetadata",
    "OffsetAndTimestamp",
    "OffsetSpec",
    "PartitionDescription",
    "Producer",
    "RebalanceListener",
    "RecordMetadata",
    "SyncAdmin",
    "SyncConsumer",
    "SyncDelivery",
    "SyncProducer",
    "TidelogError",
    "TopicDescription",
    "TopicListing",
    "TopicPartition",
]
