"""A node's settings, with the changes made at runtime."""

from __future__ import annotations

import dataclasses
import logging

from tidelog_core.config import NodeConfig, settings_of
from tidelog_core.metadata.image.cluster_image import ClusterImage
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.setting import Value

logger = logging.getLogger(__name__)


class LiveNodeConfig:
    """Returns the settings in force on a broker whenever it is called."""

    def __init__(self, static: NodeConfig, view: ClusterView, broker_id: int) -> None:
        self._static = static
        self._broker_id = broker_id
        self._follow(view.image, frozenset())
        view.subscribe(self._follow)

    def __call__(self) -> NodeConfig:
        return self._config

    def _follow(self, image: ClusterImage, _: frozenset[str]) -> None:
        self._config = effective_node_config(self._static, image, self._broker_id)


def effective_node_config(
    static: NodeConfig, image: ClusterImage, broker_id: int | None
) -> NodeConfig:
    """Return ``static`` under the overrides of every node, those under this broker's own.

    With ``None`` only the overrides of every node count. An override that this
    program does not know or cannot read is passed over with a warning: a newer node
    may have set it, and this one must still start.
    """
    values: dict[str, Value] = {}
    for owner in (None,) if broker_id is None else (None, broker_id):
        overrides = image.node_configs.get(owner)
        if overrides is None:
            continue
        for name, text in overrides.configs.items():
            setting = settings_of(NodeConfig).get(name)
            try:
                if setting is None or setting.is_read_only:
                    raise ValueError("not a setting that can change while running")
                values[setting.field] = setting.parse(text)
            except ValueError as error:
                logger.warning(
                    "node setting ignored", extra={"setting": name, "reason": str(error)}
                )
    return dataclasses.replace(static, **values)  # type: ignore[arg-type]
