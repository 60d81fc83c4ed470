"""Parses the settings of metrics for CloudWatch."""

from __future__ import annotations

import re

_CLUSTER = re.compile(r"(|[A-Za-z0-9][A-Za-z0-9._-]{0,127})", re.ASCII)


def parse_cloudwatch_cluster(text: str) -> str:
    """Return the name of a cluster as a dimension, empty for none. Raises ``ValueError``."""
    if _CLUSTER.fullmatch(text) is None:
        raise ValueError("must be up to 128 of the characters a-z A-Z 0-9 . _ -, or empty")
    return text
