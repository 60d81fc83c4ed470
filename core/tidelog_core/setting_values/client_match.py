"""Parses the ``match`` of a subscription to the metrics of clients.

Source: KIP-714, and Kafka's ``ClientMetricsConfigs.parseMatchingPatterns``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

CLIENT_INSTANCE_ID = "client_instance_id"
CLIENT_ID = "client_id"
CLIENT_SOFTWARE_NAME = "client_software_name"
CLIENT_SOFTWARE_VERSION = "client_software_version"
CLIENT_SOURCE_ADDRESS = "client_source_address"
CLIENT_SOURCE_PORT = "client_source_port"
CLIENT_ATTRIBUTES = frozenset(
    {
        CLIENT_INSTANCE_ID,
        CLIENT_ID,
        CLIENT_SOFTWARE_NAME,
        CLIENT_SOFTWARE_VERSION,
        CLIENT_SOURCE_ADDRESS,
        CLIENT_SOURCE_PORT,
    }
)
ALL_METRICS = "*"


def parse_client_match(parts: Iterable[str]) -> Mapping[str, str]:
    """Return the patterns by the attribute of clients that they are for; the last one counts.

    Raises ``ValueError`` for a part that is not ``attribute=pattern``. Patterns are not compiled.
    """
    patterns = {}
    for part in parts:
        attribute, separator, pattern = part.partition("=")
        attribute, pattern = attribute.strip(), pattern.strip()
        if not separator or not pattern or "=" in pattern or attribute not in CLIENT_ATTRIBUTES:
            raise ValueError(
                f"Illegal client matching pattern: {part}; it is NAME=PATTERN, and NAME is one of"
                f" {', '.join(sorted(CLIENT_ATTRIBUTES))}"
            )
        patterns[attribute] = pattern
    return patterns
