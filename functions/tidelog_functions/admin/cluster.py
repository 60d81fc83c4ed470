"""The cluster as a function sees it, only through the metadata store."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Self

from tidelog_core.admin.groups.group_admin import GroupAdmin
from tidelog_core.admin.settings.config_admin import ConfigAdmin
from tidelog_core.admin.topics.topic_admin import TopicAdmin
from tidelog_core.clock import steady_clock_ms
from tidelog_core.config import NodeConfig
from tidelog_core.cost.overview import CostReader
from tidelog_core.errors import (
    BrokerIdNotRegistered,
    InvalidConfig,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.location import open_metadata_store
from tidelog_core.metadata.node_config import effective_node_config
from tidelog_core.metadata.records import (
    BROKER_LEASE_COLLECTION,
    Partition,
    SegmentMeta,
    Topic,
    segment_collection,
)
from tidelog_core.metadata.store import MetadataStore
from tidelog_core.model import ANONYMOUS, TopicPartition
from tidelog_core.objects.location import open_object_store
from tidelog_core.objects.store import ObjectStore
from tidelog_core.replication.leases.lease_times import lease_times
from tidelog_core.replication.leases.observed_lease import read_leases
from tidelog_core.replication.leases.peer_leases import PeerLeases
from tidelog_core.security.authorization import Client

from tidelog_functions.admin.caller import (
    AdminAuthorizer,
    Caller,
    principal_of,
)
from tidelog_functions.admin.problems import Misconfigured
from tidelog_functions.admin_jobs.job_starter import JobStarter
from tidelog_functions.invocation import FunctionSettings, parse_function_settings

AWS_METADATA = "dynamodb:"
IAM, NO_AUTHORIZATION = "iam", "none"
AUTHORIZATION_VARIABLE = "TIDELOG_ADMIN_AUTHORIZATION"
JOBS_FUNCTION_VARIABLE = "TIDELOG_ADMIN_JOBS_FUNCTION"


@dataclass(frozen=True, slots=True, kw_only=True)
class AdminSettings:
    """The cluster's location, its nodes' static settings, and the required authorization."""

    function: FunctionSettings
    requires_identity: bool  # False only if no other program can reach the API
    anonymous: str = str(ANONYMOUS)  # the principal of callers without an identity
    jobs_function: str = ""  # the name or ARN of the Lambda function that runs jobs; empty: none


def parse_admin_settings(environment: Mapping[str, str]) -> AdminSettings:
    """Return the settings. Raises ``InvalidConfig`` with every problem at once."""
    problems = []
    authorization = environment.get(AUTHORIZATION_VARIABLE, IAM)
    if authorization not in (IAM, NO_AUTHORIZATION):
        problems.append(
            f"{AUTHORIZATION_VARIABLE} must be {IAM} or {NO_AUTHORIZATION}, not {authorization!r}"
        )
    try:
        function = parse_function_settings(environment)
    except InvalidConfig as error:
        raise InvalidConfig([*error.problems, *problems]) from None
    if problems:
        raise InvalidConfig(problems)
    return AdminSettings(
        function=function,
        requires_identity=authorization == IAM,
        jobs_function=environment.get(JOBS_FUNCTION_VARIABLE, ""),
    )


class AdminCluster:
    """One cluster and its administration. For the tasks of one event loop.

    Kept between invocations: then the view reads only changes, and two readings of the leases
    show which brokers have died. A single reading shows only brokers that shut down cleanly.
    """

    def __init__(
        self, store: MetadataStore, settings: FunctionSettings, *, anonymous: str = str(ANONYMOUS)
    ) -> None:
        """``anonymous`` is the principal of callers without an identity."""
        self.store = store
        self.settings = settings
        self.is_on_aws = settings.metadata_url.startswith(AWS_METADATA)
        self.jobs: JobStarter | None = None  # None: nothing runs jobs
        # Whether requests may wait for news of a job: on Lambda each holds one of few executions.
        self.waits_for_news = False
        self.static_config = settings.node_config
        self._anonymous = anonymous
        has_authorizer = bool(settings.node_config.authorizer_class_name)
        self.view = ClusterView(store, shows_rights=has_authorizer)
        self._authorizer = (
            AdminAuthorizer(settings.node_config, self.view.image) if has_authorizer else None
        )
        self.peers = PeerLeases(lease_times(settings.node_config))
        self._objects_url = settings.objects_url
        self._objects: ObjectStore | None = None
        self.topic_admin = TopicAdmin(
            store=store,
            view=self.view,
            node_config=self.node_config,
            live=self.live,
            see_peers=self.see_peers,
        )
        self.config_admin = ConfigAdmin(store=store, view=self.view, node_config=self.node_config)
        self.groups = GroupAdmin(store=store, view=self.view)
        self.costs = CostReader(store, self.node_config)

    @classmethod
    def open(cls, settings: FunctionSettings, *, anonymous: str = str(ANONYMOUS)) -> Self:
        """Return the cluster in the settings. Raises ``InvalidConfig``."""
        return cls(
            open_metadata_store(settings.metadata_url, may_be_new=True),
            settings,
            anonymous=anonymous,
        )

    async def close(self) -> None:
        """Release the stores."""
        await self.store.close()
        if self._objects is not None:
            await self._objects.close()

    async def caller(self, identity: str | None, host: str) -> Caller:
        """Return the caller with its rights, read now if there is an authorizer."""
        principal = self._anonymous if identity is None else principal_of(identity)
        if self._authorizer is None:
            return Caller(Client((principal,), host))
        return self._authorizer.caller(await self.view.refresh(), principal, host)

    def objects(self) -> ObjectStore:
        """Return the object store, opened on first use: most calls do not need it.

        Raises ``Misconfigured``.
        """
        if self._objects is None:
            try:
                self._objects = open_object_store(self._objects_url)
            except InvalidConfig as error:
                raise Misconfigured(f"TIDELOG_OBJECTS: {error}") from error
        return self._objects

    def node_config(self) -> NodeConfig:
        """Return the settings of every node, from the environment and the store."""
        return effective_node_config(self.static_config, self.view.image, None)

    async def see_peers(self) -> None:
        """Read the brokers' leases."""
        started_ms = steady_clock_ms()
        leases = read_leases(await self.store.list(BROKER_LEASE_COLLECTION))
        self.peers.observe(leases, started_ms=started_ms, now_ms=steady_clock_ms())

    def live(self, image: ClusterImage) -> Set[int]:
        """Return the brokers except those known to be gone."""
        return frozenset(b for b in image.brokers if self.peers.is_live(b))

    async def topic(self, name: str) -> Topic:
        """Return the topic, read now.

        Raises ``UnknownTopicOrPartition``, and ``CorruptItem`` if that cannot be decided.
        """
        await self.view.refresh()
        return self.known_topic(name)

    def known_topic(self, name: str) -> Topic:
        """Return the topic as it was last read. Raises as ``topic``."""
        image = self.view.image
        topic = image.topic(name)
        if topic is None:
            image.require_readable(name)
            raise UnknownTopicOrPartition(f"The topic '{name}' does not exist.")
        return topic

    async def partition(self, name: TopicPartition) -> Partition:
        """Return the partition, read now. Raises ``UnknownTopicOrPartition``."""
        await self.topic(name.topic)
        return self.known_partition(name)

    def known_partition(self, name: TopicPartition) -> Partition:
        """Return the partition as it was last read. Raises ``UnknownTopicOrPartition``."""
        partition = self.view.image.partition(name)
        if partition is None:
            count = len(self.view.image.partitions(name.topic))
            raise UnknownTopicOrPartition(
                f"There is no partition {name.partition} of the topic '{name.topic}',"
                f" which has {count} partition(s)."
            )
        return partition

    async def require_broker(self, broker_id: int) -> None:
        """Raise ``BrokerIdNotRegistered`` if the broker is not registered."""
        brokers = (await self.view.refresh()).brokers
        if broker_id not in brokers:
            known = ", ".join(map(str, brokers)) or "none"
            raise BrokerIdNotRegistered(
                f"Broker {broker_id} is not registered; registered are {known}."
            )

    async def segments(self, partition: Partition) -> list[SegmentMeta]:
        """Return the partition's tiered segments in every state, by base offset."""
        items = await self.store.list(segment_collection(partition.topic_id, partition.partition))
        return [SegmentMeta.from_item(item) for item in items]
