"""Markers as WriteTxnMarkers has them."""

from __future__ import annotations

from collections.abc import Sequence

from kio.schema.write_txn_markers.v1 import request as markers_request
from kio.schema.write_txn_markers.v1 import response as markers_response
from tidelog_core.model import TopicPartition
from tidelog_core.wire_messages import build

from tidelog_node.fairness.request_turns import RequestTurn
from tidelog_node.transactions.markers import Marker, MarkerResults


def to_request(markers: Sequence[Marker]) -> markers_request.WriteTxnMarkersRequest:
    """Return the request that carries the markers."""
    return build(
        markers_request.WriteTxnMarkersRequest,
        markers=tuple(
            build(
                markers_request.WritableTxnMarker,
                producer_id=marker.producer_id,
                producer_epoch=marker.producer_epoch,
                transaction_result=marker.is_commit,
                topics=tuple(
                    build(
                        markers_request.WritableTxnMarkerTopic,
                        name=name,
                        partition_indexes=tuple(indexes),
                    )
                    for name, indexes in _by_topic(marker).items()
                ),
                coordinator_epoch=marker.coordinator_epoch,
            )
            for marker in markers
        ),
    )


async def from_request(
    request: markers_request.WriteTxnMarkersRequest, turn: RequestTurn
) -> list[Marker]:
    """Return the markers in a request."""
    return [
        Marker(
            producer_id=marker.producer_id,
            producer_epoch=marker.producer_epoch,
            is_commit=marker.transaction_result,
            coordinator_epoch=marker.coordinator_epoch,
            partitions=frozenset(
                [
                    TopicPartition(topic.name, index)
                    async for topic in turn.each(marker.topics)
                    async for index in turn.each(topic.partition_indexes)
                ]
            ),
        )
        async for marker in turn.each(request.markers)
    ]


async def to_response(
    request: markers_request.WriteTxnMarkersRequest, results: MarkerResults, turn: RequestTurn
) -> markers_response.WriteTxnMarkersResponse:
    """Return the response, in the order of the request's markers."""
    return build(
        markers_response.WriteTxnMarkersResponse,
        markers=tuple(
            [
                build(
                    markers_response.WritableTxnMarkerResult,
                    producer_id=marker.producer_id,
                    topics=tuple(
                        [
                            build(
                                markers_response.WritableTxnMarkerTopicResult,
                                name=topic.name,
                                partitions=tuple(
                                    [
                                        build(
                                            markers_response.WritableTxnMarkerPartitionResult,
                                            partition_index=index,
                                            error_code=results[
                                                marker.producer_id,
                                                TopicPartition(topic.name, index),
                                            ],
                                        )
                                        async for index in turn.each(topic.partition_indexes)
                                    ]
                                ),
                            )
                            async for topic in turn.each(marker.topics)
                        ]
                    ),
                )
                async for marker in turn.each(request.markers)
            ]
        ),
    )


def _by_topic(marker: Marker) -> dict[str, list[int]]:
    topics: dict[str, list[int]] = {}
    for topic, index in sorted(marker.partitions):
        topics.setdefault(topic, []).append(index)
    return topics
