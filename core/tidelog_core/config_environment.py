"""Node settings given as environment variables: ``TIDELOG_CONFIG_NUM_PARTITIONS=3``.

Nodes and functions read them. A node's settings give the defaults of topic settings, so every
process that applies a topic's settings needs the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.config import NodeConfig, settings_of
from tidelog_core.errors import InvalidConfig

CONFIG_PREFIX = "TIDELOG_CONFIG_"


def config_variable(name: str) -> str:
    """Return the variable of the setting with Kafka's ``name``."""
    return CONFIG_PREFIX + name.upper().replace(".", "_")


def overrides_from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the settings that are given, by Kafka's name; their values are not parsed.

    Raises ``InvalidConfig`` with every variable that names no setting.
    """
    by_variable = {config_variable(name): name for name in settings_of(NodeConfig)}
    given = {v: text for v, text in environment.items() if v.startswith(CONFIG_PREFIX)}
    problems = [
        f"environment variable {variable} names no setting"
        for variable in given
        if variable not in by_variable
    ]
    if problems:
        raise InvalidConfig(problems)
    return {by_variable[variable]: text for variable, text in given.items()}
