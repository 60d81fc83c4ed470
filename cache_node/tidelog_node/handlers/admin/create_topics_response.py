"""The response of CreateTopics, encoded topic by topic.

The answer for a created topic has its forty settings. Most of the thousands of topics in a request
have the same ones, so these are encoded once and appended to the fields before them.

    throttle_time_ms  topics  tags (from version 5 on)
    topic:  …  configs (from version 5 on, the last field)  tags
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args, get_type_hints

from kio.index import load_response_schema
from kio.schema.create_topics.v7 import response as create_response
from tidelog_core.admin.failures import admin_error_code
from tidelog_core.admin.settings.describe import NodeLayers, describe_topic
from tidelog_core.admin.topics.topic_plans import TopicPlan
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode, TidelogError
from tidelog_core.wire_messages import write_message

from tidelog_node.counters import NodeCounters
from tidelog_node.wire.messages import build
from tidelog_node.wire.primitives import array_length

FLEXIBLE_FROM = 5  # and with settings
_NO_THROTTLE = bytes(4)
_NO_TAGS = b"\0"


class CreateTopicsResponse:
    """Builds one response. A refused topic has no settings."""

    def __init__(self, version: int, layers: NodeLayers, counters: NodeCounters) -> None:
        """``counters`` counts the refusals."""
        self._counters = counters
        self._is_flexible = version >= FLEXIBLE_FROM
        self._layers = layers
        hints = get_type_hints(load_response_schema(ApiKey.CREATE_TOPICS, version))
        self._schema: Any = get_args(hints["topics"])[0]
        # Extended topic by topic: joining a hundred thousand pieces at the end takes too long.
        self._topics = bytearray()
        self._topic_count = 0
        self._configs: dict[frozenset[tuple[str, str]], bytes] = {}

    def add_created(self, plan: TopicPlan, *, has_configs: bool) -> None:
        """Add a topic that was created, or passed validation.

        A client that may not see its settings does not get its partition count either.
        """
        fields = {
            "error_code": ErrorCode.none,
            "name": plan.topic.name,
            "topic_id": plan.topic.topic_id,
        }
        if not has_configs:
            self._add(
                self._encode(
                    fields
                    | {
                        "topic_config_error_code": ErrorCode.topic_authorization_failed,
                        "num_partitions": -1,
                        "replication_factor": -1,
                    }
                )
            )
            return
        fields |= {
            "num_partitions": plan.topic.partition_count,
            "replication_factor": plan.replication_factor,
        }
        encoded = self._encode(fields)
        if self._is_flexible:
            without = encoded.removesuffix(array_length(0, is_flexible=True) + _NO_TAGS)
            encoded = b"".join((without, self._encoded_configs(plan.topic.configs), _NO_TAGS))
        self._add(encoded)

    def add_refused(self, name: str, error: TidelogError) -> None:
        """Add a topic that was not created."""
        code = admin_error_code(error)
        self._counters.note_error(ApiKey.CREATE_TOPICS, code)
        fields = {"error_code": code, "error_message": str(error), "name": name}
        self._add(self._encode(fields))

    def encoded(self) -> bytes:
        """Return the response."""
        length = array_length(self._topic_count, is_flexible=self._is_flexible)
        tags = _NO_TAGS if self._is_flexible else b""
        return b"".join((_NO_THROTTLE, length, self._topics, tags))

    def _add(self, encoded: bytes) -> None:
        self._topics += encoded
        self._topic_count += 1

    def _encode(self, fields: Mapping[str, object]) -> bytes:
        result = build(create_response.CreatableTopicResult, configs=(), **fields)
        return write_message(self._schema, result)

    def _encoded_configs(self, configs: Mapping[str, str]) -> bytes:
        key = frozenset(configs.items())
        encoded = self._configs.get(key)
        if encoded is None:
            entries = [
                build(
                    create_response.CreatableTopicConfigs,
                    name=entry.setting.name,
                    value=entry.value,
                    read_only=entry.is_read_only,
                    config_source=int(entry.source),
                )
                for entry in describe_topic(configs, self._layers)
            ]
            schema = create_response.CreatableTopicConfigs
            written = [write_message(schema, entry) for entry in entries]
            length = array_length(len(written), is_flexible=True)
            encoded = self._configs[key] = b"".join((length, *written))
        return encoded
