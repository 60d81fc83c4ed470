"""Admin calls for configs of topics, groups and nodes, for nodes and for log directories."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping
from typing import Any, Literal

from kio.schema.api_versions.v3.request import ApiVersionsRequest
from kio.schema.describe_cluster.v1.request import DescribeClusterRequest
from kio.schema.describe_configs.v4.request import DescribeConfigsRequest, DescribeConfigsResource
from kio.schema.describe_log_dirs.v4.request import DescribeLogDirsRequest
from kio.schema.errors import ErrorCode
from kio.schema.incremental_alter_configs.v1.request import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from tidelog_core.software_version import version_in
from tidelog_core.wire_messages import build

from tidelog.administering.calls import AdminCalls
from tidelog.administering.results import (
    ClusterDescription,
    ConfigEntry,
    ConfigSynonym,
    LogDir,
    LogDirReplica,
    NodeDescription,
)
from tidelog.errors import InvalidRequest, error_for
from tidelog.given_values import mapping, several
from tidelog.wire.connection import SOFTWARE_NAME, SOFTWARE_VERSION
from tidelog.wire.requests import (
    API_VERSIONS,
    DESCRIBE_CLUSTER,
    DESCRIBE_CONFIGS,
    DESCRIBE_LOG_DIRS,
    INCREMENTAL_ALTER_CONFIGS,
    NodeVersions,
)

ResourceType = Literal["topic", "node", "group", "client-metrics"]
DESCRIBED_AT_ONCE_MAX = 200  # resources in one request
_RESOURCE_TYPES: Mapping[str, int] = {
    "topic": 2,
    "node": 4,
    "client-metrics": 16,
    "group": 32,
}
_OPERATIONS = {"set": 0, "delete": 1, "append": 2, "subtract": 3}
_SOURCES = {
    1: "dynamic_topic",
    2: "dynamic_broker",
    3: "dynamic_default_broker",
    4: "static_broker",
    5: "default",
    6: "dynamic_broker_logger",
    7: "client_metrics",
    8: "dynamic_group",
}
_TYPES = {
    1: "boolean",
    2: "string",
    3: "int",
    4: "short",
    5: "long",
    6: "double",
    7: "list",
    8: "class",
    9: "password",
}


class ConfigCalls(AdminCalls):
    """Admin calls for configs, nodes and log directories."""

    async def describe_configs(
        self,
        resource_type: ResourceType,
        name: str | int,
        *,
        keys: Iterable[str] | None = None,
        include_documentation: bool = False,
    ) -> dict[str, ConfigEntry]:
        """Return a resource's configs in force, by name; only ``keys`` if they are given.

        A node is named by its id; ``""`` selects the defaults of all nodes. A group has configs
        even before it exists.
        """
        found = await self.describe_several_configs(
            resource_type, [name], keys=keys, include_documentation=include_documentation
        )
        return found[str(name)]

    async def describe_several_configs(
        self,
        resource_type: ResourceType,
        names: Iterable[str | int],
        *,
        keys: Iterable[str] | None = None,
        include_documentation: bool = False,
    ) -> dict[str, dict[str, ConfigEntry]]:
        """Return the configs of many resources by their names, asked in few requests.

        Each node is asked for its own. Raises as ``raise_failures`` does.
        """
        wanted = list(dict.fromkeys(str(name) for name in several(names, "names")))
        wanted_keys = None if keys is None else tuple(several(keys, "keys of configs"))

        def request_for(left: list[str]) -> object:
            return build(
                DescribeConfigsRequest,
                resources=tuple(
                    build(
                        DescribeConfigsResource,
                        resource_type=_resource_type(resource_type),
                        resource_name=name,
                        configuration_keys=wanted_keys,
                    )
                    for name in left
                ),
                include_synonyms=True,
                include_documentation=include_documentation,
            )

        if resource_type == "node":
            parts = [[name] for name in wanted]
        else:
            parts = [
                wanted[at : at + DESCRIBED_AT_ONCE_MAX]
                for at in range(0, len(wanted), DESCRIBED_AT_ONCE_MAX)
            ]
        found: dict[str, dict[str, ConfigEntry]] = {}
        for part in parts:
            results = await self._ask_for_each(
                DESCRIBE_CONFIGS,
                part,
                request_for,
                what=resource_type,
                node_id=_node_of(resource_type, part[0]),
            )
            for name, result in results.items():
                found[name] = {entry.name: _config_entry(entry) for entry in result.configs}
        return found

    async def alter_configs(
        self,
        resource_type: ResourceType,
        name: str | int,
        *,
        set: Mapping[str, str] | None = None,
        delete: Iterable[str] = (),
        append: Mapping[str, str] | None = None,
        subtract: Mapping[str, str] | None = None,
        validate_only: bool = False,
    ) -> None:
        """Set configs, reset them to their defaults, or change lists; other configs stay.

        Atomic: either all changes are made or none. Raises ``InvalidConfig``.
        """
        changes = [
            *((key, "set", value) for key, value in _named(set, "set").items()),
            *((key, "delete", None) for key in several(delete, "configs to delete")),
            *((key, "append", value) for key, value in _named(append, "append").items()),
            *((key, "subtract", value) for key, value in _named(subtract, "subtract").items()),
        ]
        request = build(
            IncrementalAlterConfigsRequest,
            resources=(
                build(
                    AlterConfigsResource,
                    resource_type=_resource_type(resource_type),
                    resource_name=str(name),
                    configs=tuple(
                        build(
                            AlterableConfig,
                            name=key,
                            config_operation=_OPERATIONS[operation],
                            value=value,
                        )
                        for key, operation, value in changes
                    ),
                ),
            ),
            validate_only=validate_only,
        )

        await self._ask_for_each(
            INCREMENTAL_ALTER_CONFIGS,
            [str(name)],
            lambda _: request,
            what=resource_type,
            node_id=_node_of(resource_type, name),
        )

    async def describe_cluster(self) -> ClusterDescription:
        """Return the cluster's id and its live nodes."""
        request = build(DescribeClusterRequest, include_cluster_authorized_operations=False)

        response = await self._ask(DESCRIBE_CLUSTER, request, about="cluster")
        nodes = sorted(response.brokers, key=lambda broker: int(broker.broker_id))
        return ClusterDescription(
            response.cluster_id,
            int(response.controller_id),
            tuple(NodeDescription(int(n.broker_id), n.host, int(n.port), n.rack) for n in nodes),
        )

    async def describe_versions(self) -> dict[int, str | None]:
        """Return each live node's version of Tidelog; ``None`` for a node that tells none.

        Kafka's brokers and nodes of older versions tell none.
        """
        await self.start()
        request = build(
            ApiVersionsRequest,
            client_software_name=SOFTWARE_NAME,
            client_software_version=SOFTWARE_VERSION,
        )

        async def ask(node_id: int) -> str | None:
            async def attempt() -> NodeVersions:
                found: NodeVersions = await self._cluster.request(
                    API_VERSIONS, request, node_id=node_id
                )
                return found

            versions = await self._retried(attempt)
            if versions.error is not ErrorCode.none:
                raise error_for(versions.error, None, about=f"node {node_id}")
            return version_in(versions.node_features)

        nodes = sorted(self._cluster.nodes)
        return dict(zip(nodes, await asyncio.gather(*map(ask, nodes)), strict=True))

    async def describe_log_dirs(self, node_ids: Iterable[int] | None = None) -> list[LogDir]:
        """Return the log directories of the named nodes; of all nodes by default."""
        await self.start()
        wanted = (
            sorted(self._cluster.nodes)
            if node_ids is None
            else list(several(node_ids, "ids of nodes"))
        )
        request = build(DescribeLogDirsRequest, topics=None)

        async def ask(node_id: int) -> list[LogDir]:
            about = f"node {node_id}"
            response = await self._ask(DESCRIBE_LOG_DIRS, request, about=about, node_id=node_id)
            return [_log_dir(node_id, result) for result in response.results]

        found = await asyncio.gather(*(ask(node_id) for node_id in wanted))
        return [log_dir for part in found for log_dir in part]


def _named(values: Mapping[str, str] | None, name: str) -> Mapping[str, str]:
    return {} if values is None else mapping(values, name, "a config's name: its value")


def _resource_type(resource_type: str) -> int:
    if not isinstance(resource_type, str) or resource_type not in _RESOURCE_TYPES:
        raise InvalidRequest(
            f"configs belong to one of {', '.join(_RESOURCE_TYPES)}, not {resource_type!r}"
        )
    return _RESOURCE_TYPES[resource_type]


def _node_of(resource_type: ResourceType, name: str | int) -> int | None:
    """Return the node to query, or None for any: only a node itself has its own configs."""
    if resource_type != "node" or name == "":
        return None
    if not str(name).isdecimal():
        raise InvalidRequest(f"name a node by its id, not {name!r}")
    return int(name)


def _config_entry(entry: Any) -> ConfigEntry:
    return ConfigEntry(
        entry.name,
        entry.value,
        _SOURCES.get(int(entry.config_source), "unknown"),
        _TYPES.get(int(entry.config_type), "unknown"),
        bool(entry.read_only),
        bool(entry.is_sensitive),
        entry.documentation,
        tuple(
            ConfigSynonym(s.name, s.value, _SOURCES.get(int(s.source), "unknown"))
            for s in entry.synonyms
        ),
    )


def _log_dir(node_id: int, result: Any) -> LogDir:
    return LogDir(
        node_id,
        result.log_dir,
        None if result.error_code is ErrorCode.none else result.error_code.name,
        int(result.total_bytes),
        int(result.usable_bytes),
        tuple(
            LogDirReplica(
                topic.name,
                int(p.partition_index),
                int(p.partition_size),
                int(p.offset_lag),
                bool(p.is_future_key),
            )
            for topic in result.topics
            for p in topic.partitions
        ),
    )
