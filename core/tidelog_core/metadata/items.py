"""Lists every kind of item in the metadata store: its record, writers and readers.

``docs/internals/metadata-items.md`` is made from this table.
"""

from __future__ import annotations

from dataclasses import dataclass

from tidelog_core.metadata.admin_jobs import AdminJob
from tidelog_core.metadata.client_metrics import ClientMetricsOverrides
from tidelog_core.metadata.coordination.group_configs import GroupConfigOverrides
from tidelog_core.metadata.coordination.groups import GroupOffsets, GroupRecord
from tidelog_core.metadata.coordination.member_pages import MemberPage
from tidelog_core.metadata.coordination.share_partitions import SharePartitionRecord
from tidelog_core.metadata.coordination.transactions import (
    PendingOffsets,
    PendingOffsetsClaim,
    TransactionRecord,
)
from tidelog_core.metadata.cost_records import CostDay, CostHour
from tidelog_core.metadata.erasures import KeyErasure, LocalErasure
from tidelog_core.metadata.record import Record
from tidelog_core.metadata.records import (
    PRODUCER_ID_COUNTER,
    Broker,
    BrokerLease,
    ChainTombstone,
    Cluster,
    DeletedTopic,
    FunctionProgress,
    JobStart,
    KnownObjectStore,
    NodeConfigOverrides,
    Partition,
    RestorationMark,
    ScrubOrphans,
    SegmentMeta,
    Topic,
)
from tidelog_core.metadata.rewrite_claims import RewriteClaim
from tidelog_core.metadata.schema_records import (
    SchemaContext,
    SchemaIdentity,
    SchemaJournal,
    SchemaSettings,
    SchemaSubject,
    SchemaText,
)
from tidelog_core.metadata.security.acls import StoredAcl
from tidelog_core.metadata.security.client_quotas import EntityQuotas
from tidelog_core.metadata.security.delegation_tokens import DelegationToken
from tidelog_core.metadata.security.roles import Role
from tidelog_core.metadata.security.scram_users import ScramDecoySecret, UserScramCredential
from tidelog_core.metadata.store import ItemKey

ALWAYS, NEVER = "always", "never"
ADMIN = "administration"  # on a node or as a function
IMAGES = "every image"
NODES_IMAGES = "the images of nodes"
SCHEMA_REGISTRY = "any process that serves the schema registry"


@dataclass(frozen=True, slots=True)
class ItemKind:
    """The description of the items with one form of key."""

    value: type[Record] | ItemKey  # a key: of a counter
    logged: str  # whether, or when, a write of it is in the changelog
    writers: str
    readers: str


ITEMS = (
    ItemKind(Cluster, ALWAYS, "the first node that starts", "nodes at their start, " + IMAGES),
    ItemKind(Broker, ALWAYS, "the broker at its start", IMAGES),
    ItemKind(BrokerLease, NEVER, "the broker's lease thread", "the other brokers, " + ADMIN),
    ItemKind(NodeConfigOverrides, ALWAYS, ADMIN, IMAGES),
    ItemKind(GroupConfigOverrides, ALWAYS, ADMIN, IMAGES),
    ItemKind(ClientMetricsOverrides, ALWAYS, "a node, for an administrator", IMAGES),
    ItemKind(UserScramCredential, ALWAYS, "a node, for an administrator", NODES_IMAGES),
    ItemKind(ScramDecoySecret, ALWAYS, "a node, with the first credential", NODES_IMAGES),
    ItemKind(
        DelegationToken, ALWAYS, "a node, for a user; a node removes it expired", NODES_IMAGES
    ),
    ItemKind(StoredAcl, ALWAYS, "a node, for an administrator", NODES_IMAGES),
    ItemKind(Role, ALWAYS, "a node, for an administrator", NODES_IMAGES),
    ItemKind(EntityQuotas, ALWAYS, "a node, for an administrator", NODES_IMAGES),
    ItemKind(Topic, ALWAYS, ADMIN, IMAGES),
    ItemKind(
        Partition,
        "all but its creation, which its topic's item shows",
        "the leader, the broker that elects one, administration, retention",
        IMAGES,
    ),
    ItemKind(
        SegmentMeta,
        NEVER,
        "the leader, retention, compaction and erasure",
        "the leader, functions, Spark, commands on the tier",
    ),
    ItemKind(
        DeletedTopic, ALWAYS, "administration; retention removes it", "every image, retention"
    ),
    ItemKind(
        KnownObjectStore,
        NEVER,
        "the first node that uses the object store, `tidelog tier accept-store`",
        "a node, before it uses the object store",
    ),
    ItemKind(ChainTombstone, NEVER, "administration, retention", "retention, nodes at their start"),
    ItemKind(RewriteClaim, "with a swap", "the process that rewrites segments", "nodes, rewriters"),
    ItemKind(LocalErasure, ALWAYS, "erasure, then each replica", "the partition's replicas"),
    ItemKind(KeyErasure, ALWAYS, "erasure, then each replica", "the partition's replicas"),
    ItemKind(FunctionProgress, NEVER, "the function", "its next run"),
    ItemKind(ScrubOrphans, NEVER, "the scrub", "its next run"),
    ItemKind(JobStart, NEVER, "the function that starts jobs", "its next run"),
    ItemKind(
        CostHour,
        NEVER,
        "the node or function that has counted; the node with the lowest id seals it",
        "reports of costs, the node with the lowest id",
    ),
    ItemKind(CostDay, NEVER, "the node with the lowest id", "reports of costs"),
    ItemKind(
        AdminJob,
        NEVER,
        "the admin API, and the process that runs the job",
        "the admin API, the job's next process",
    ),
    ItemKind(RestorationMark, NEVER, "the restoration", "the restoration when it continues"),
    ItemKind(
        GroupRecord,
        "by administration",
        "the group's coordinator, administration",
        "the group's coordinator, share-partition leaders, administration",
    ),
    ItemKind(
        MemberPage,
        NEVER,
        "the group's coordinator, administration",
        "the group's coordinator, administration",
    ),
    ItemKind(
        GroupOffsets,
        NEVER,
        "the group's coordinator, administration",
        "the group's coordinator, administration",
    ),
    ItemKind(
        SharePartitionRecord,
        "by administration",
        "the partition's leader, administration",
        "the partition's leader, administration",
    ),
    ItemKind(PRODUCER_ID_COUNTER, NEVER, "nodes, a block of ids at a time", "nodes"),
    ItemKind(TransactionRecord, NEVER, "the transaction coordinator", "its successors"),
    ItemKind(PendingOffsets, NEVER, "the group's coordinator", "its successors, administration"),
    ItemKind(
        PendingOffsetsClaim, NEVER, "the group's coordinator", "none: writes expect its version"
    ),
    ItemKind(SchemaContext, NEVER, SCHEMA_REGISTRY, SCHEMA_REGISTRY),
    ItemKind(SchemaText, NEVER, SCHEMA_REGISTRY, SCHEMA_REGISTRY),
    ItemKind(SchemaIdentity, NEVER, SCHEMA_REGISTRY, SCHEMA_REGISTRY),
    ItemKind(SchemaSubject, NEVER, SCHEMA_REGISTRY, SCHEMA_REGISTRY),
    ItemKind(SchemaSettings, NEVER, SCHEMA_REGISTRY, SCHEMA_REGISTRY),
    ItemKind(SchemaJournal, NEVER, SCHEMA_REGISTRY, SCHEMA_REGISTRY),
)
