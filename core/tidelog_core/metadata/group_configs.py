"""The record of a group's own settings: one item a group, beside the group and outliving it.

``group-config`` / ``<group id>`` holds what was set for the group and nothing else; a group
without settings of its own has no item, whether there is such a group or not.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tidelog_core.config import GroupConfig, settings_of
from tidelog_core.errors import CorruptItem
from tidelog_core.metadata.body import BodyReader
from tidelog_core.metadata.store import ABSENT, Body, Item, ItemKey

GROUP_CONFIG_COLLECTION = "group-config"


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigOverrides:
    """What was set for one group."""

    group_id: str
    configs: Mapping[str, str]
    version: int = field(default=ABSENT, compare=False)

    @property
    def item_id(self) -> ItemKey:
        """The item's key."""
        return group_config_key(self.group_id)

    def to_body(self) -> Body:
        """Return the item's body."""
        return {"group_id": self.group_id, "configs": dict(self.configs)}

    @classmethod
    def from_item(cls, item: Item) -> GroupConfigOverrides:
        """Return the record.

        Raises ``CorruptItem``, also for settings that this program cannot use.
        """
        fields = BodyReader(item)
        record = cls(
            group_id=fields.text("group_id"), configs=fields.texts("configs"), version=item.version
        )
        fields.finish()
        declared = settings_of(GroupConfig)
        for name, text in record.configs.items():
            try:
                declared[name].parse(text)
            except (KeyError, ValueError) as error:
                key = (item.id.collection, item.id.key)
                raise CorruptItem(key, f"its setting {name}={text!r}: {error}") from None
        return record


def group_config_key(group_id: str) -> ItemKey:
    """Return where a group's own settings lie."""
    return ItemKey(GROUP_CONFIG_COLLECTION, group_id)
