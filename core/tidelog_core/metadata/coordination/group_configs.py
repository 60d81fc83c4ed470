"""The record of a group's own settings: one item per group, independent of the group's record.

It holds only the settings that were set for the group. A group without such settings has no item.
An item may exist without its group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from tidelog_core.config import GroupConfig, parse_config
from tidelog_core.metadata.fields import Checked
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey

GROUP_CONFIG_COLLECTION = "group-config"


@key_form
def group_config_key(group_id: str) -> ItemKey:
    """Return the key of a group's own settings."""
    return ItemKey(GROUP_CONFIG_COLLECTION, f"{group_id}")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupConfigOverrides(Record):
    """The overrides of one group. An item with an unknown or wrong setting is damaged."""

    KEY = group_config_key

    group_id: str
    configs: Annotated[Mapping[str, str], Checked(partial(parse_config, GroupConfig))]
