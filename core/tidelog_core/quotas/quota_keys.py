"""The limits that quotas may set, and their valid values.

Source: Kafka's ``QuotaConfig``, ``ClientQuotaControlManager``.
"""

from __future__ import annotations

import math
from enum import Enum

from tidelog_core.errors import InvalidRequest
from tidelog_core.quotas.quota_entity import QuotaEntity

_FRACTION_MAX = 1e-6  # of a value that must be whole


class QuotaKey(Enum):
    """A limited rate. Its value is Kafka's name of it."""

    PRODUCER_BYTE_RATE = "producer_byte_rate"  # bytes a second
    CONSUMER_BYTE_RATE = "consumer_byte_rate"  # bytes a second
    REQUEST_PERCENTAGE = "request_percentage"  # of the time of one thread
    CONTROLLER_MUTATION_RATE = "controller_mutation_rate"  # partitions created or deleted a second
    CONNECTION_CREATION_RATE = "connection_creation_rate"  # connections a second


_KEYS_OF_ADDRESSES = {QuotaKey.CONNECTION_CREATION_RATE.value: QuotaKey.CONNECTION_CREATION_RATE}
_KEYS_OF_CLIENTS = {key.value: key for key in QuotaKey if key.value not in _KEYS_OF_ADDRESSES}
# The largest value of each quota that must be whole, and the name of its type.
_WHOLE = {
    QuotaKey.PRODUCER_BYTE_RATE: (2**63 - 1, "a LONG"),
    QuotaKey.CONSUMER_BYTE_RATE: (2**63 - 1, "a LONG"),
    QuotaKey.CONNECTION_CREATION_RATE: (2**31 - 1, "an INT"),
}


def checked_quota(entity: QuotaEntity, name: str, value: float | None) -> QuotaKey:
    """Return the key of this name for an entity. A ``value`` of ``None`` is not checked.

    Raises ``InvalidRequest``.
    """
    keys = _KEYS_OF_CLIENTS if entity.ip is None else _KEYS_OF_ADDRESSES
    key = keys.get(name)
    if key is None:
        raise InvalidRequest(f"Invalid configuration key {name}")
    if value is None:
        return key
    if not value > 0:  # NaN too
        raise InvalidRequest(f"Quota {name} must be greater than 0")
    if key in _WHOLE:
        largest, kind = _WHOLE[key]
        if value > largest:
            raise InvalidRequest(f"Proposed value for {name} is too large for {kind}.")
        if math.fmod(value, 1.0) > _FRACTION_MAX:
            raise InvalidRequest(f"{name} cannot be a fractional value.")
    elif math.isinf(value):
        raise InvalidRequest(f"Quota {name} must be finite")
    return key
