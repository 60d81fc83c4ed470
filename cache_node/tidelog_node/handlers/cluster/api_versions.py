"""ApiVersions: which APIs and versions this node speaks. Source: KIP-35, KIP-511, KIP-584."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from kio.schema.api_versions.v4 import request as wire_request
from kio.schema.api_versions.v4 import response as wire_response
from tidelog_core.api_keys import ApiKey
from tidelog_core.errors import ErrorCode
from tidelog_core.model import ANONYMOUS
from tidelog_core.software_version import feature_of, tidelog_version

from tidelog_node.requests.routes import EncodedResponse, HotRoute, RequestContext, Route
from tidelog_node.requests.session import NO_NODE
from tidelog_node.wire.messages import build, write_response

SOFTWARE_FROM = 3
# Clients raise their producer epoch with every transaction if the node has this feature (KIP-890).
# Besides the node's own version it is the only feature, and it never changes: Kafka's others are
# about its controllers' log.
TRANSACTION_VERSION = "transaction.version"
TRANSACTION_VERSION_LEVEL = 2
FEATURES_EPOCH = 0
ZERO_LEVEL_FROM = 4  # clients of older versions cannot read a lowest level of 0
_SOFTWARE = re.compile(r"[a-zA-Z0-9](?:[a-zA-Z0-9\-.]*[a-zA-Z0-9])?")


class ApiVersionsHandler:
    """Answers with the APIs of all routes and its own."""

    def __init__(
        self,
        hot: Iterable[HotRoute],
        control: Iterable[Route],
        *,
        for_nodes: Mapping[int, tuple[int, int]],
    ) -> None:
        """``for_nodes`` has the versions of APIs that are announced to other nodes only."""
        ranges = {r.api_key: (r.advertised_min_version, r.max_version) for r in hot}
        for route in (*control, *self.routes()):
            low, high = ranges.get(route.api_key, (route.min_version, route.max_version))
            ranges[route.api_key] = (min(low, route.min_version), max(high, route.max_version))
        self._ranges = sorted(ranges.items())
        self._node_ranges = sorted((ranges | dict(for_nodes)).items())
        self._version = feature_of(tidelog_version())
        # The table has hundreds of fields, and every connection begins with this request.
        self._encoded: dict[tuple[int, bool, bool], EncodedResponse] = {}

    def routes(self) -> list[Route]:
        """Return the routes."""
        return [Route(ApiKey.API_VERSIONS, 0, 4, self.handle)]

    async def handle(
        self, request: wire_request.ApiVersionsRequest, context: RequestContext
    ) -> wire_response.ApiVersionsResponse | EncodedResponse:
        """Return the table."""
        if context.api_version >= SOFTWARE_FROM:
            software = request.client_software_name, request.client_software_version
            if not all(map(_SOFTWARE.fullmatch, software)):
                error_code = ErrorCode.invalid_request
                return build(wire_response.ApiVersionsResponse, error_code=error_code)
            context.session.software_name, context.session.software_version = software
        version, session = context.api_version, context.session
        # The program's version is not shown to clients without a login: it reveals known faults.
        is_known = session.authentication is None or session.principal != ANONYMOUS
        key = version, is_known, session.node_id != NO_NODE
        encoded = self._encoded.get(key)
        if encoded is None:
            table = self._table(version, is_known=is_known, is_node=session.node_id != NO_NODE)
            body = write_response(ApiKey.API_VERSIONS, version, table)
            encoded = self._encoded[key] = EncodedResponse(table, body)
        return encoded

    def _table(
        self, version: int, *, is_known: bool, is_node: bool
    ) -> wire_response.ApiVersionsResponse:
        return build(
            wire_response.ApiVersionsResponse,
            error_code=ErrorCode.none,
            api_keys=tuple(
                build(wire_response.ApiVersion, api_key=api_key, min_version=low, max_version=high)
                for api_key, (low, high) in (self._node_ranges if is_node else self._ranges)
            ),
            supported_features=tuple(
                build(
                    wire_response.SupportedFeatureKey, name=name, min_version=low, max_version=high
                )
                for name, low, high in self._features(version, is_known=is_known)
            ),
            finalized_features_epoch=FEATURES_EPOCH,
            finalized_features=(
                build(
                    wire_response.FinalizedFeatureKey,
                    name=TRANSACTION_VERSION,
                    max_version_level=TRANSACTION_VERSION_LEVEL,
                    min_version_level=TRANSACTION_VERSION_LEVEL,
                ),
            ),
        )

    def _features(self, version: int, *, is_known: bool) -> Iterator[tuple[str, int, int]]:
        """Yield name, lowest and highest level of each feature."""
        lowest = 0 if version >= ZERO_LEVEL_FROM else 1
        yield TRANSACTION_VERSION, lowest, TRANSACTION_VERSION_LEVEL
        if is_known:
            yield self._version, 1, 1
