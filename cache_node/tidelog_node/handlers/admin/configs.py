"""DescribeConfigs, AlterConfigs, IncrementalAlterConfigs and ListConfigResources.

Settings belong to topics, to groups and to nodes. A node answers for itself and for the settings
of all nodes; clients send requests about another node to that node. Source: ``ConfigHelper``,
``ConfigAdminManager`` and ``ControllerConfigurationValidator`` of Kafka, with their codes and
messages.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from kio.schema.alter_configs.v2 import request as alter_request
from kio.schema.alter_configs.v2 import response as alter_response
from kio.schema.describe_configs.v4 import request as describe_request
from kio.schema.describe_configs.v4 import response as describe_response
from kio.schema.incremental_alter_configs.v1 import request as incremental_request
from kio.schema.incremental_alter_configs.v1 import response as incremental_response
from kio.schema.list_config_resources.v1 import request as list_request
from kio.schema.list_config_resources.v1 import response as list_response
from tidelog_core.admin.names import validate_topic_name
from tidelog_core.admin.settings.client_metrics import ClientMetricsAdmin
from tidelog_core.admin.settings.config_admin import ConfigAdmin
from tidelog_core.admin.settings.config_resources import ConfigResourceType
from tidelog_core.admin.settings.configs import Alteration, AlterOperation, check_names
from tidelog_core.admin.settings.describe import (
    CONFIG_TYPE_NUMBERS,
    ConfigEntry,
    NodeLayers,
    describe_client_metrics,
    describe_every_node,
    describe_group,
    describe_node,
    describe_topic,
)
from tidelog_core.admin.settings.diskless_topics import ENABLE
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import (
    ErrorCode,
    InvalidRequest,
    StoreUnavailable,
    TidelogError,
    UnknownTopicOrPartition,
)
from tidelog_core.metadata.image.cluster_image import ClusterImage

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.groups.consumer.topic_pattern import TopicPattern
from tidelog_node.handlers.administration import admin_outcome
from tidelog_node.handlers.chain_store_check import ChainStoreCheck
from tidelog_node.node_context import NodeContext
from tidelog_node.requests.routes import RequestContext, Route
from tidelog_node.wire.messages import build


class _Resource(Protocol):
    @property
    def resource_type(self) -> int: ...
    @property
    def resource_name(self) -> str: ...


R = TypeVar("R", bound=_Resource)
T = TypeVar("T")


class ConfigHandlers:
    """Shows and changes settings."""

    def __init__(self, node: NodeContext, *, chain_store: ChainStoreCheck) -> None:
        self._node = node
        self._chain_store = chain_store
        self._admin = ConfigAdmin(store=node.store, view=node.view, node_config=node.config)
        self._subscriptions = ClientMetricsAdmin(node.store, node.view, check_pattern=TopicPattern)

    def routes(self) -> list[Route]:
        """Return the routes served here."""
        return [
            Route(ApiKey.DESCRIBE_CONFIGS, 1, 4, self.describe_configs),
            Route(ApiKey.ALTER_CONFIGS, 0, 2, self.alter_configs),
            Route(ApiKey.INCREMENTAL_ALTER_CONFIGS, 0, 1, self.incremental_alter_configs),
            Route(ApiKey.LIST_CONFIG_RESOURCES, 0, 1, self.list_config_resources),
        ]

    async def describe_configs(
        self, request: describe_request.DescribeConfigsRequest, _: RequestContext
    ) -> describe_response.DescribeConfigsResponse:
        """Answer DescribeConfigs."""
        image = await self._newest_image() if request.resources else self._node.view.image
        results = []
        turn = RequestTurn()
        async for resource in turn.each(request.resources):
            entries: list[ConfigEntry] = []
            error: TidelogError | None = None
            try:
                entries = self._describe(image, resource)
            except TidelogError as raised:
                error = raised.with_traceback(None)  # a traceback holds the request
            keys = resource.configuration_keys
            results.append(
                admin_outcome(
                    describe_response.DescribeConfigsResult,
                    error,
                    resource_type=resource.resource_type,
                    resource_name=resource.resource_name,
                    configs=tuple(
                        _shown(entry, request)
                        for entry in entries
                        if not keys or entry.setting.name in keys
                    ),
                )
            )
        return build(describe_response.DescribeConfigsResponse, results=tuple(results))

    async def alter_configs(
        self, request: alter_request.AlterConfigsRequest, _: RequestContext
    ) -> alter_response.AlterConfigsResponse:
        """Answer AlterConfigs: the given settings replace all others."""

        async def alter(resource: alter_request.AlterConfigsResource) -> None:
            check_names(config.name for config in resource.configs)
            missing = [config.name for config in resource.configs if config.value is None]
            if missing:
                raise InvalidRequest(f"Null value not supported for : {', '.join(missing)}")
            configs = {c.name: c.value for c in resource.configs if c.value is not None}
            name, validate_only = resource.resource_name, request.validate_only
            match self._resource_type(resource):
                case ConfigResourceType.TOPIC:
                    await self._check_chains(configs.get(ENABLE))
                    await self._admin.replace_topic(name, configs, validate_only=validate_only)
                case ConfigResourceType.GROUP:
                    await self._admin.replace_group(name, configs, validate_only=validate_only)
                case ConfigResourceType.CLIENT_METRICS:
                    await self._subscriptions.replace(name, configs, validate_only=validate_only)
                case ConfigResourceType.BROKER:
                    node = self._node_of(resource)
                    await self._admin.replace_node(node, configs, validate_only=validate_only)

        turn = RequestTurn()
        responses = await _alter_each(
            request.resources, alter, turn, alter_response.AlterConfigsResourceResponse
        )
        return build(alter_response.AlterConfigsResponse, responses=responses)

    async def incremental_alter_configs(
        self, request: incremental_request.IncrementalAlterConfigsRequest, _: RequestContext
    ) -> incremental_response.IncrementalAlterConfigsResponse:
        """Answer IncrementalAlterConfigs: settings that are not given stay."""
        turn = RequestTurn()

        async def alter(resource: incremental_request.AlterConfigsResource) -> None:
            check_names(config.name for config in resource.configs)
            missing = [
                config.name
                async for config in turn.each(resource.configs)
                if config.value is None and int(config.config_operation) != AlterOperation.DELETE
            ]
            if missing:
                raise InvalidRequest(f"Null value not supported for : {', '.join(missing)}")
            alterations = [
                Alteration(config.name, _operation(config.config_operation), config.value)
                async for config in turn.each(resource.configs)
            ]
            name, validate_only = resource.resource_name, request.validate_only
            match self._resource_type(resource):
                case ConfigResourceType.TOPIC:
                    for one in alterations:
                        if one.name == ENABLE:
                            await self._check_chains(one.value)
                    await self._admin.alter_topic(name, alterations, validate_only=validate_only)
                case ConfigResourceType.GROUP:
                    await self._admin.alter_group(name, alterations, validate_only=validate_only)
                case ConfigResourceType.CLIENT_METRICS:
                    await self._subscriptions.alter(name, alterations, validate_only=validate_only)
                case ConfigResourceType.BROKER:
                    node = self._node_of(resource)
                    await self._admin.alter_node(node, alterations, validate_only=validate_only)

        responses = await _alter_each(
            request.resources, alter, turn, incremental_response.AlterConfigsResourceResponse
        )
        return build(incremental_response.IncrementalAlterConfigsResponse, responses=responses)

    async def _check_chains(self, value: str | None) -> None:
        """Raise ``InvalidConfig`` if a topic is to be diskless in a store that can have none."""
        if (value or "").lower() != "true":
            return
        refusal = await self._chain_store.refusal()
        if refusal is not None:
            raise refusal.with_traceback(None)

    async def list_config_resources(
        self, request: list_request.ListConfigResourcesRequest, context: RequestContext
    ) -> list_response.ListConfigResourcesResponse:
        """Answer ListConfigResources (KIP-1142); version 0 lists client metrics only."""
        image = await self._newest_image()
        named: dict[int, Iterable[str]] = {
            ConfigResourceType.GROUP: image.group_configs,
            ConfigResourceType.CLIENT_METRICS: image.client_metrics,
            ConfigResourceType.BROKER_LOGGER: (),
            ConfigResourceType.BROKER: map(str, image.brokers),
            ConfigResourceType.TOPIC: image.topics,
        }
        wanted = {int(number) for number in request.resource_types} or set(named)
        if context.api_version == 0:
            wanted = {int(ConfigResourceType.CLIENT_METRICS)}
        if not wanted <= named.keys():
            return build(
                list_response.ListConfigResourcesResponse,
                error_code=ErrorCode.unsupported_version,
                config_resources=(),
            )
        return build(
            list_response.ListConfigResourcesResponse,
            error_code=ErrorCode.none,
            config_resources=tuple(
                build(list_response.ConfigResource, resource_name=name, resource_type=number)
                for number, names in named.items()
                if number in wanted
                for name in names
            ),
        )

    async def _newest_image(self) -> ClusterImage:
        """Return an image with the latest changes of other nodes, if the store is available."""
        try:
            return await self._node.view.refresh()
        except StoreUnavailable:
            return self._node.view.image

    def _describe(
        self, image: ClusterImage, resource: describe_request.DescribeConfigsResource
    ) -> list[ConfigEntry]:
        layers = NodeLayers.of(self._node.static_config, image, self._node.broker_id)
        if int(resource.resource_type) == ConfigResourceType.TOPIC:
            validate_topic_name(resource.resource_name)
            topic = image.topic(resource.resource_name)
            if topic is None:
                raise UnknownTopicOrPartition("This server does not host this topic-partition.")
            return describe_topic(topic.configs, layers)
        if int(resource.resource_type) == ConfigResourceType.GROUP:
            if not resource.resource_name:
                raise InvalidRequest("Group name must not be empty")
            overrides = image.group_configs.get(resource.resource_name)
            configs = {} if overrides is None else overrides.configs
            return describe_group(configs, self._node.config())
        if int(resource.resource_type) == ConfigResourceType.CLIENT_METRICS:
            if not resource.resource_name:
                raise InvalidRequest("Client metrics subscription name must not be empty")
            subscription = image.client_metrics.get(resource.resource_name)
            return describe_client_metrics({} if subscription is None else subscription.configs)
        self._resource_type(resource)
        if self._node_of(resource) is None:
            return describe_every_node(layers)
        return describe_node(layers, image.brokers.get(self._node.broker_id))

    def _resource_type(self, resource: _Resource) -> ConfigResourceType:
        """Return the type of a resource that settings can belong to. Raises ``TidelogError``."""
        match resource.resource_type:
            case ConfigResourceType.TOPIC:
                if not resource.resource_name:
                    raise InvalidRequest("Default topic resources are not allowed.")
                validate_topic_name(resource.resource_name)
                return ConfigResourceType.TOPIC
            case ConfigResourceType.GROUP:
                if not resource.resource_name:
                    raise InvalidRequest("Default group resources are not allowed.")
                return ConfigResourceType.GROUP
            case ConfigResourceType.CLIENT_METRICS:
                return ConfigResourceType.CLIENT_METRICS
            case ConfigResourceType.BROKER:
                return ConfigResourceType.BROKER
        raise InvalidRequest(f"Unknown resource type {resource.resource_type}")

    def _node_of(self, resource: _Resource) -> int | None:
        """Return the broker id, ``None`` for every node. Raises ``InvalidRequest``."""
        name = resource.resource_name
        if not name:
            return None
        if not name.isascii() or not name.isdigit():
            raise InvalidRequest(f"Node id must be an integer, but it is: {name}")
        if int(name) != self._node.broker_id:
            raise InvalidRequest(
                f"Unexpected broker id, expected {self._node.broker_id} or empty string,"
                f" but received {name}"
            )
        return self._node.broker_id


async def _alter_each(
    resources: Sequence[R],
    alter: Callable[[R], Awaitable[None]],
    turn: RequestTurn,
    response_class: type[T],
) -> tuple[T, ...]:
    """Alter every resource by itself; return each one's part of the response."""
    counts = Counter((resource.resource_type, resource.resource_name) for resource in resources)
    responses = []
    async for resource in turn.each(resources):
        error: TidelogError | None = None
        try:
            if counts[resource.resource_type, resource.resource_name] > 1:
                raise InvalidRequest("Each resource must appear at most once.")
            await alter(resource)
        except TidelogError as raised:
            error = raised.with_traceback(None)  # a traceback holds the request
        responses.append(
            admin_outcome(
                response_class,
                error,
                resource_type=resource.resource_type,
                resource_name=resource.resource_name,
            )
        )
    return tuple(responses)


def _operation(number: int) -> AlterOperation:
    try:
        return AlterOperation(number)
    except ValueError:
        raise InvalidRequest(f"Unknown operations type {number}") from None


def _shown(
    entry: ConfigEntry, request: describe_request.DescribeConfigsRequest
) -> describe_response.DescribeConfigsResourceResult:
    synonyms = entry.synonyms if request.include_synonyms else ()
    return build(
        describe_response.DescribeConfigsResourceResult,
        name=entry.setting.name,
        value=entry.value,
        read_only=entry.is_read_only,
        config_source=int(entry.source),
        is_sensitive=entry.setting.is_sensitive,
        config_type=CONFIG_TYPE_NUMBERS[entry.setting.type],
        documentation=entry.setting.doc if request.include_documentation else None,
        synonyms=tuple(
            build(
                describe_response.DescribeConfigsSynonym,
                name=synonym.name,
                value=synonym.value,
                source=int(synonym.source),
            )
            for synonym in synonyms
        ),
    )
