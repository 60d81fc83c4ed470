"""Node settings given as environment variables: ``TIDELOG_CONFIG_NUM_PARTITIONS=3``.

A setting of one listener is ``TIDELOG_CONFIG_LISTENER_NAME_<LISTENER>_<SETTING>``.

Nodes and functions read them. A node's settings give the defaults of topic settings, so every
process that applies a topic's settings needs the same ones.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.config import ListenerConfig, NodeConfig, settings_of
from tidelog_core.errors import InvalidConfig
from tidelog_core.listener_settings import LISTENER_PREFIX, listener_setting_name

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
    names = {v: by_variable.get(v) or _listener_setting(v) for v in given}
    problems = [
        f"environment variable {variable} names no setting"
        for variable, name in names.items()
        if not name
    ]
    if problems:
        raise InvalidConfig(problems)
    return {names[variable]: text for variable, text in given.items()}


def _listener_setting(variable: str) -> str:
    """Return the listener's setting that the variable names, "" if it names none."""
    beginning = config_variable(LISTENER_PREFIX)
    for setting in settings_of(ListenerConfig) if variable.startswith(beginning) else ():
        ending = "_" + config_variable(setting).removeprefix(CONFIG_PREFIX)
        listener = variable.removeprefix(beginning).removesuffix(ending)
        if listener and beginning + listener + ending == variable:
            return listener_setting_name(listener, setting)
    return ""
