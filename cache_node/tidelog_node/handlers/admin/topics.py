"""CreateTopics, DeleteTopics and CreatePartitions.

Every topic of a request succeeds or fails by itself, with Kafka's code and message.
Source: ``ControllerApis`` and ``ReplicationControlManager`` of Kafka.
"""

from __future__ import annotations

from collections.abc import AsyncIterable, Collection, Iterable, Mapping
from typing import TypeVar
from uuid import UUID

from kio.schema.create_partitions.v3 import request as partitions_request
from kio.schema.create_partitions.v3 import response as partitions_response
from kio.schema.create_topics.v7 import request as create_request
from kio.schema.delete_topics.v5 import request as delete_request_v5
from kio.schema.delete_topics.v6 import request as delete_request
from kio.schema.delete_topics.v6 import response as delete_response
from tidelog_core.admin.failures import admin_error_code
from tidelog_core.admin.settings.describe import NodeLayers
from tidelog_core.admin.topics.topic_commits import Deletion
from tidelog_core.admin.topics.topic_plans import NewTopic, WiderTopic, wanted_partition_count
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import (
    ErrorCode,
    InvalidRequest,
    PolicyViolation,
    StoreUnavailable,
    TidelogError,
    TopicAuthorizationFailed,
    TopicDeletionDisabled,
    UnknownTopicId,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.security.acl import AclOperation, ResourceType

from tidelog_node.authorization.access import Access
from tidelog_node.authorization.refusals import REFUSED
from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.handlers.admin.create_topics_response import CreateTopicsResponse
from tidelog_node.handlers.administration import admin_outcome, topic_admin
from tidelog_node.handlers.chain_store_check import ChainStoreCheck
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.throttling.mutation_quota import MutationQuota
from tidelog_node.throttling.throttle import Throttle
from tidelog_node.wire.messages import build

T = TypeVar("T")

# The versions from which on a client over its quota is refused, not only throttled.
STRICT_CREATION_FROM, STRICT_DELETION_FROM, STRICT_WIDENING_FROM = 6, 5, 3
DELETION_DISABLED_FROM = 3  # of DeleteTopics: it has the code of disabled deletion (KIP-322)


class TopicHandlers:
    """Creates, widens and deletes topics."""

    def __init__(
        self,
        node: NodeContext,
        *,
        throttle: Throttle,
        access: Access | None,
        chain_store: ChainStoreCheck,
    ) -> None:
        """Without ``access`` every client may create topics."""
        self._node = node
        self._chain_store = chain_store
        self._access = access
        self._throttle = throttle
        self._admin = topic_admin(node)

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.CREATE_TOPICS, 2, 7, self.create_topics),
            Route(ApiKey.DELETE_TOPICS, 1, 5, self.delete_topics_by_name),
            Route(ApiKey.DELETE_TOPICS, 6, 6, self.delete_topics),
            Route(ApiKey.CREATE_PARTITIONS, 0, 3, self.create_partitions),
        ]

    async def create_topics(
        self, request: create_request.CreateTopicsRequest, context: RequestContext
    ) -> bytes:
        """Answer CreateTopics, encoded."""
        turn = RequestTurn()
        asked, refused = await self._creatable(request.topics, context, turn)
        repeated = await _repeated(turn, (topic.name for topic in asked))
        wanted = [
            _new_topic(topic) async for topic in turn.each(asked) if topic.name not in repeated
        ]
        answer = CreateTopicsResponse(
            context.api_version,
            NodeLayers.of(self._node.static_config, self._node.view.image, self._node.broker_id),
            self._node.counters,
        )
        async for name in turn.each(refused):
            answer.add_refused(name, TopicAuthorizationFailed(REFUSED))
        async for twice in turn.each(repeated):
            answer.add_refused(twice, InvalidRequest("Duplicate topic name."))
        seconds_max = request.timeout.total_seconds()
        unstorable = await self._chain_store.refused(
            wanted, self._node.config(), seconds_max=seconds_max
        )
        if unstorable:
            wanted = [new async for new in turn.each(wanted) if new.name not in unstorable]
        quota = self._quota(context, STRICT_CREATION_FROM)
        counts = {new.name: wanted_partition_count(new, self._node.config()) for new in wanted}
        exceeded = quota.spend(counts)
        try:
            outcomes = await self._admin.create_topics(
                [new for new in wanted if new.name not in exceeded],
                validate_only=request.validate_only,
                seconds_max=seconds_max,
            )
        except PolicyViolation as error:
            outcomes = {new.name: error async for new in turn.each(wanted)}
        quota.give_back(_failed_count(outcomes, counts))
        async for name, outcome in turn.each((unstorable | exceeded | outcomes).items()):
            if isinstance(outcome, TidelogError):
                answer.add_refused(name, outcome)
            else:
                answer.add_created(outcome, has_configs=self._shows_configs(name, context))
        self._throttle.mutated(context, quota)
        return answer.encoded()

    def _quota(self, context: RequestContext, strict_from: int) -> MutationQuota:
        return self._throttle.mutations(context, is_strict=context.api_version >= strict_from)

    async def _creatable(
        self,
        topics: Iterable[create_request.CreatableTopic],
        context: RequestContext,
        turn: RequestTurn,
    ) -> tuple[list[create_request.CreatableTopic], dict[str, None]]:
        """Return the topics that the client may create, and the names of the others."""
        access, session = self._access, context.session
        if access is None or access.has_right_to_cluster(session, AclOperation.CREATE):
            return list(topics), {}
        asked: list[create_request.CreatableTopic] = []
        refused: dict[str, None] = {}
        async for topic in turn.each(topics):
            if access.may(session, AclOperation.CREATE, ResourceType.TOPIC, topic.name):
                asked.append(topic)
            else:
                refused[topic.name] = None
        return asked, refused

    def _shows_configs(self, name: str, context: RequestContext) -> bool:
        return self._access is None or self._access.may(
            context.session, AclOperation.DESCRIBE_CONFIGS, ResourceType.TOPIC, name
        )

    async def delete_topics_by_name(
        self, request: delete_request_v5.DeleteTopicsRequest, context: RequestContext
    ) -> delete_response.DeleteTopicsResponse:
        """Answer the versions of DeleteTopics without topic ids."""
        try:
            self._admin.check_deletion_enabled()
        except TopicDeletionDisabled as disabled:
            is_old = context.api_version < DELETION_DISABLED_FROM
            code = ErrorCode.invalid_request if is_old else disabled.code
            refused = [
                _undeleted(code, str(disabled), name=name)
                async for name in RequestTurn().each(request.topic_names)
            ]
            return build(delete_response.DeleteTopicsResponse, responses=tuple(refused))
        seconds_max = request.timeout.total_seconds()
        return await self._delete(context, request.topic_names, (), seconds_max=seconds_max)

    async def delete_topics(
        self, request: delete_request.DeleteTopicsRequest, context: RequestContext
    ) -> delete_response.DeleteTopicsResponse:
        """Answer DeleteTopics by name or by id."""
        try:
            self._admin.check_deletion_enabled()
        except TopicDeletionDisabled as disabled:
            refused = [
                _undeleted(disabled.code, str(disabled), name=topic.name, topic_id=topic.topic_id)
                async for topic in RequestTurn().each(request.topics)
            ]
            return build(delete_response.DeleteTopicsResponse, responses=tuple(refused))
        names: list[str] = []
        ids: list[UUID] = []
        wrong = []
        async for topic in RequestTurn().each(request.topics):
            match topic.name, topic.topic_id:
                case None, None:
                    wrong.append(
                        _refused_deletion("Neither topic name nor id were specified.", None, None)
                    )
                case None, UUID() as topic_id:
                    ids.append(topic_id)
                case str(name), None:
                    names.append(name)
                case name, topic_id:
                    wrong.append(
                        _refused_deletion(
                            "You may not specify both topic name and topic id.", name, topic_id
                        )
                    )
        seconds_max = request.timeout.total_seconds()
        response = await self._delete(context, names, ids, seconds_max=seconds_max)
        return build(delete_response.DeleteTopicsResponse, responses=(*wrong, *response.responses))

    async def create_partitions(
        self, request: partitions_request.CreatePartitionsRequest, context: RequestContext
    ) -> partitions_response.CreatePartitionsResponse:
        """Answer CreatePartitions."""
        turn = RequestTurn()
        repeated = await _repeated(turn, (topic.name for topic in request.topics))
        results = [
            _widened(name, InvalidRequest("Duplicate topic name."))
            async for name in turn.each(repeated)
        ]
        wanted = [
            _wider_topic(topic)
            async for topic in turn.each(request.topics)
            if topic.name not in repeated
        ]
        quota, image = self._quota(context, STRICT_WIDENING_FROM), self._node.view.image
        counts = {
            wider.name: max(0, wider.count - len(image.partitions(wider.name))) for wider in wanted
        }
        exceeded = quota.spend(counts)
        outcomes = await self._admin.widen_topics(
            [wider for wider in wanted if wider.name not in exceeded],
            validate_only=request.validate_only,
            seconds_max=request.timeout.total_seconds(),
        )
        quota.give_back(_failed_count(outcomes, counts))
        async for widened, outcome in turn.each((exceeded | outcomes).items()):
            error = outcome if isinstance(outcome, TidelogError) else None
            results.append(_widened(widened, error))
        self._throttle.mutated(context, quota)
        return build(partitions_response.CreatePartitionsResponse, results=tuple(results))

    async def _delete(
        self,
        context: RequestContext,
        names: Iterable[str],
        ids: Iterable[UUID],
        *,
        seconds_max: float,
    ) -> delete_response.DeleteTopicsResponse:
        turn = RequestTurn()
        names, ids = list(names), list(ids)
        repeated_names, repeated_ids = await _repeated(turn, names), await _repeated(turn, ids)
        results = [
            _refused_deletion("Duplicate topic name.", name, None)
            async for name in turn.each(repeated_names)
        ]
        results += [
            _refused_deletion("Duplicate topic id.", None, topic_id)
            async for topic_id in turn.each(repeated_ids)
        ]
        try:
            image = await self._node.view.refresh()
        except StoreUnavailable as error:
            results += await _all_undeleted(turn, names, ids, error)
            return build(delete_response.DeleteTopicsResponse, responses=tuple(results))
        by_id: dict[UUID, str] = {}
        asked_ids = [one async for one in turn.each(ids) if one not in repeated_ids]
        results += await _resolve_ids(image, turn.each(asked_ids), by_id)
        named = [name async for name in turn.each(names) if name not in repeated_names]
        results += await self._resolve_names(image, turn.each(named), by_id)
        quota = self._quota(context, STRICT_DELETION_FROM)
        counts = {topic_id: len(image.partitions(name)) for topic_id, name in by_id.items()}
        exceeded = quota.spend(counts)
        outcomes = await self._admin.delete_topics(
            [topic_id for topic_id in by_id if topic_id not in exceeded], seconds_max=seconds_max
        )
        quota.give_back(_failed_count(outcomes, counts))
        async for topic_id, outcome in turn.each((exceeded | outcomes).items()):
            results.append(_deletion_result(topic_id, by_id[topic_id], outcome))
        self._throttle.mutated(context, quota)
        return build(delete_response.DeleteTopicsResponse, responses=tuple(results))

    async def _resolve_names(
        self, image: ClusterImage, names: AsyncIterable[str], by_id: dict[UUID, str]
    ) -> list[delete_response.DeletableTopicResult]:
        """Add the named topics to ``by_id``; return the answers for those with an error."""
        results = []
        async for name in names:
            topic = image.topic(name)
            if topic is None:
                unknown = UnknownTopicOrPartition("This server does not host this topic-partition.")
                results.append(_undeleted(unknown.code, str(unknown), name=name))
            elif topic.topic_id in by_id:
                del by_id[topic.topic_id]
                results.append(
                    _refused_deletion(
                        "The provided topic name maps to an ID that was already supplied.",
                        name,
                        topic.topic_id,
                    )
                )
            else:
                by_id[topic.topic_id] = name
        return results


def _new_topic(topic: create_request.CreatableTopic) -> NewTopic:
    return NewTopic(
        name=topic.name,
        partition_count=topic.num_partitions,
        replication_factor=topic.replication_factor,
        assignments=[(given.partition_index, given.broker_ids) for given in topic.assignments],
        configs={config.name: config.value for config in topic.configs},
    )


def _wider_topic(topic: partitions_request.CreatePartitionsTopic) -> WiderTopic:
    assignments = None
    if topic.assignments is not None:
        assignments = [given.broker_ids for given in topic.assignments]
    return WiderTopic(topic.name, topic.count, assignments)


def _failed_count(outcomes: Mapping[T, object], counts: Mapping[T, int]) -> int:
    """Return how many partitions the topics have that were not changed."""
    return sum(
        counts[topic] for topic, outcome in outcomes.items() if isinstance(outcome, TidelogError)
    )


async def _repeated(turn: RequestTurn, values: Iterable[T]) -> dict[T, None]:
    """Return the values that occur more than once, in order."""
    seen: set[T] = set()
    repeated: dict[T, None] = {}
    async for value in turn.each(values):
        if value in seen:
            repeated[value] = None
        seen.add(value)
    return repeated


def _widened(
    name: str, error: TidelogError | None
) -> partitions_response.CreatePartitionsTopicResult:
    return admin_outcome(partitions_response.CreatePartitionsTopicResult, error, name=name)


def _deletion_result(
    topic_id: UUID, name: str, outcome: Deletion | TidelogError
) -> delete_response.DeletableTopicResult:
    if isinstance(outcome, TidelogError):
        return _undeleted(admin_error_code(outcome), str(outcome), name=name, topic_id=topic_id)
    return build(
        delete_response.DeletableTopicResult,
        error_code=ErrorCode.none,
        name=name,
        topic_id=topic_id,
    )


def _refused_deletion(
    problem: str, name: str | None, topic_id: UUID | None
) -> delete_response.DeletableTopicResult:
    return _undeleted(ErrorCode.invalid_request, problem, name=name, topic_id=topic_id)


def _undeleted(
    code: ErrorCode, problem: str, *, name: str | None = None, topic_id: UUID | None = None
) -> delete_response.DeletableTopicResult:
    return build(
        delete_response.DeletableTopicResult,
        name=name,
        topic_id=topic_id,
        error_code=code,
        error_message=problem,
    )


async def _all_undeleted(
    turn: RequestTurn, names: Collection[str], ids: Collection[UUID], error: StoreUnavailable
) -> list[delete_response.DeletableTopicResult]:
    """Return the error of every topic of a request, none of which was deleted for it."""
    code, text = admin_error_code(error), str(error)
    results = [_undeleted(code, text, name=name) async for name in turn.each(set(names))]
    results += [_undeleted(code, text, topic_id=topic_id) async for topic_id in turn.each(set(ids))]
    return results


async def _resolve_ids(
    image: ClusterImage, ids: AsyncIterable[UUID], by_id: dict[UUID, str]
) -> list[delete_response.DeletableTopicResult]:
    """Add the topics with these ids to ``by_id``; return the answers for unknown ones."""
    results = []
    async for topic_id in ids:
        name = image.topic_names.get(topic_id)
        if name is None:
            unknown = UnknownTopicId("This server does not host this topic ID.")
            results.append(_undeleted(unknown.code, str(unknown), topic_id=topic_id))
        else:
            by_id[topic_id] = name
    return results
