"""The record of a subscription to the metrics of clients (KIP-714): one item per subscription.

It holds only the settings that were set. A subscription without any has no item.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from tidelog_core.config import ClientMetricsConfig, parse_config
from tidelog_core.metadata.fields import Checked
from tidelog_core.metadata.record import Record, key_form
from tidelog_core.metadata.store import ItemKey

CLIENT_METRICS_COLLECTION = "client-metrics"


@key_form
def client_metrics_key(subscription: str) -> ItemKey:
    """Return the key of a subscription's settings."""
    return ItemKey(CLIENT_METRICS_COLLECTION, f"{subscription}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientMetricsOverrides(Record):
    """The settings of one subscription. An item with an unknown or wrong setting is damaged."""

    KEY = client_metrics_key

    subscription: str
    configs: Annotated[Mapping[str, str], Checked(partial(parse_config, ClientMetricsConfig))]
