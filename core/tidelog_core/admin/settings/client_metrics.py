"""Changes subscriptions to the metrics of clients (KIP-714), and validates them.

Source: Kafka's ``ClientMetricsConfigs`` and ``ControllerConfigurationValidator``, their codes and
messages.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence

from tidelog_core.admin.settings.configs import Alteration, altered_configs
from tidelog_core.config import ClientMetricsConfig, settings_of
from tidelog_core.errors import InvalidConfig, InvalidRequest, PolicyViolation, StoreUnavailable
from tidelog_core.metadata.client_metrics import ClientMetricsOverrides, client_metrics_key
from tidelog_core.metadata.image.cluster_view import ClusterView
from tidelog_core.metadata.records import delete, put
from tidelog_core.metadata.store import ABSENT, Item, MetadataStore, Write
from tidelog_core.metadata.update import update
from tidelog_core.model import INT32_MAX
from tidelog_core.setting_values.client_match import parse_client_match

SUBSCRIPTIONS_MAX = 100  # each is matched with every client that asks for its subscription
SUBSCRIPTION_NAME_BYTES_MAX = 1000  # DynamoDB's sort keys have 1,024
SUBSCRIPTION_VALUE_BYTES_MAX = 16_384  # of one setting
_INTERVAL, _MATCH = "interval.ms", "match"


class ClientMetricsAdmin:
    """Changes subscriptions. Any number of nodes may do so concurrently."""

    def __init__(
        self, store: MetadataStore, view: ClusterView, *, check_pattern: Callable[[str], object]
    ) -> None:
        """``check_pattern`` raises ``ValueError`` for a pattern that cannot be matched."""
        self._store = store
        self._view = view
        self._check_pattern = check_pattern

    async def alter(
        self, name: str, alterations: Sequence[Alteration], *, validate_only: bool = False
    ) -> None:
        """Change some settings of a subscription, which is there while it has any.

        Raises ``InvalidRequest``, ``InvalidConfig``, ``PolicyViolation`` or the store's errors.
        """
        # Without declared lists: Kafka appends to none of these settings either.
        await self._change(
            name, lambda before: altered_configs(before, alterations, {}, {}), validate_only
        )

    async def replace(
        self, name: str, configs: Mapping[str, str], *, validate_only: bool = False
    ) -> None:
        """Make ``configs`` all settings of a subscription. Raises as ``alter``."""
        await self._change(name, lambda _: dict(configs), validate_only)

    async def _change(
        self,
        name: str,
        change: Callable[[Mapping[str, str]], dict[str, str]],
        validate_only: bool,
    ) -> None:
        _check_name(name)
        key = client_metrics_key(name)

        def decide(item: Item | None) -> tuple[None, Write | None]:
            before = ClientMetricsOverrides(subscription=name, configs={})
            if item is not None:
                before = ClientMetricsOverrides.from_item(item)
            after = ClientMetricsOverrides(
                subscription=name, configs=change(before.configs), version=before.version
            )
            self._check(after.configs)
            if validate_only or after.configs == before.configs:
                return None, None
            if not after.configs:
                return None, delete(after)
            known = self._view.image.client_metrics
            if before.version == ABSENT and len(known) >= SUBSCRIPTIONS_MAX:
                raise PolicyViolation(
                    f"there are {len(known)} subscriptions to client metrics, and no more than"
                    f" {SUBSCRIPTIONS_MAX} can be: delete one first"
                )
            return None, put(after)

        await update(self._store, key, decide)
        # The commit is valid, even if the store has become unreachable since.
        with contextlib.suppress(StoreUnavailable):
            await self._view.refresh()

    def _check(self, configs: Mapping[str, str]) -> None:
        """Raise ``InvalidRequest`` or ``InvalidConfig`` for settings that no subscription has."""
        declared = settings_of(ClientMetricsConfig)
        for name, text in configs.items():
            if name not in declared:
                raise InvalidRequest(f"Unknown client metrics configuration: {name}")
            if len(text.encode()) > SUBSCRIPTION_VALUE_BYTES_MAX:
                raise InvalidConfig([f"{name} has more than {SUBSCRIPTION_VALUE_BYTES_MAX} bytes"])
        if _INTERVAL in configs:
            _check_interval(configs[_INTERVAL])
        if _MATCH in configs:
            text = configs[_MATCH].strip()
            try:
                for pattern in parse_client_match(text.split(",") if text else ()).values():
                    self._check_pattern(pattern)
            except ValueError as error:
                raise InvalidConfig([f"{_MATCH}: {error}"]) from None


def _check_name(name: str) -> None:
    size_bytes = len(name.encode())
    if not name:
        raise InvalidRequest("Subscription name can't be empty")
    if size_bytes > SUBSCRIPTION_NAME_BYTES_MAX:
        raise InvalidRequest(
            f"a subscription's name has at most {SUBSCRIPTION_NAME_BYTES_MAX} bytes,"
            f" not {size_bytes}"
        )


def _check_interval(text: str) -> None:
    """Raise ``InvalidConfig`` if it is no number, ``InvalidRequest`` if it is out of bounds."""
    setting = settings_of(ClientMetricsConfig)[_INTERVAL]
    try:
        setting.parse(text)
    except ValueError as error:
        problem = f"Invalid value {text} for {_INTERVAL}: {error}"
        if _is_int32(text):
            raise InvalidRequest(problem) from None
        raise InvalidConfig([problem]) from None


def _is_int32(text: str) -> bool:
    try:
        return -INT32_MAX <= int(text) <= INT32_MAX
    except ValueError:
        return False
