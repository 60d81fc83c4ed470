"""The version of this program, which nodes announce by the name of a feature in ApiVersions.

Kafka's protocol has no field for it. A feature has a name and numbers of 16 bits, too few for a
version, so the name has it: ``tidelog.version.0.1.0``. Clients pass over features that they do not
know (KIP-584).
"""

from __future__ import annotations

from collections.abc import Iterable

# Wheels have it from here, see pyproject.toml. Reading it from the installed package's metadata
# would take 10 ms of a node's start.
__version__ = "0.1.0"
_PREFIX = "tidelog.version."


def tidelog_version() -> str:
    """Return the version of this program."""
    return __version__


def feature_of(text: str) -> str:
    """Return the name of the feature that announces a version."""
    return f"{_PREFIX}{text}"


def version_in(features: Iterable[str]) -> str | None:
    """Return the version that a node announces by these features, ``None`` if it announces none."""
    found = [name.removeprefix(_PREFIX) for name in features if name.startswith(_PREFIX)]
    return found[0] if found else None
