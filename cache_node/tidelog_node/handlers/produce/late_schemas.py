"""Validates records by schemas: imports what that takes with the first request that needs it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tidelog_node.handlers.produce.inspection import InspectionResults, Led, checks_schemas
from tidelog_node.inspection.inspector import BatchInspector
from tidelog_node.node_context import NodeContext
from tidelog_node.processes.late_imports import imported
from tidelog_node.wire.produce import ProduceRequest

if TYPE_CHECKING:
    from tidelog_node.handlers.produce.schemas import ProduceSchemas


class LateSchemas:
    """``ProduceSchemas``, made once a thread has imported it. For the tasks of one event loop."""

    def __init__(self, node: NodeContext, inspector: BatchInspector) -> None:
        self._node = node
        self._inspector = inspector
        self._made: ProduceSchemas | None = None

    async def check(
        self, request: ProduceRequest, led_by: Led, results: InspectionResults, *, host: str
    ) -> None:
        """Note for each batch of a topic with schema validation whether it may be appended.

        The request's bytes must stay as they are.
        """
        if checks_schemas(request, led_by):
            await (await self.get()).check(request, led_by, results, host=host)

    async def get(self) -> ProduceSchemas:
        """Return the only ``ProduceSchemas``: in it all client hosts take turns."""
        if self._made is None:
            make = await imported(_load)
            if self._made is None:  # Another request may have waited for the import too.
                self._made = make(self._node, self._inspector)
        return self._made


def _load() -> Callable[[NodeContext, BatchInspector], ProduceSchemas]:
    from tidelog_node.handlers.produce.schemas import ProduceSchemas

    return ProduceSchemas
