"""The settings of single listeners among those given to a node (Kafka: KIP-103, KIP-226).

``listener.name.<listener>.<setting>`` sets a setting of ``ListenerConfig`` for one listener. The
listener's name is in lower case there, even if ``listeners`` has it in upper case.
"""

from __future__ import annotations

from collections.abc import Mapping

from tidelog_core.config import ListenerConfig, settings_of

LISTENER_PREFIX = "listener.name."


def split_listener_overrides(
    overrides: Mapping[str, str],
) -> tuple[dict[str, str], dict[str, dict[str, str]]]:
    """Return the settings of the node, and those of listeners by the listener's lower-case name.

    A name that begins like a listener's setting and is none stays among the node's, where it is
    reported as unknown.
    """
    of_node: dict[str, str] = {}
    of_listeners: dict[str, dict[str, str]] = {}
    for name, text in overrides.items():
        listener, setting = _parse_name(name)
        if setting:
            of_listeners.setdefault(listener, {})[setting] = text
        else:
            of_node[name] = text
    return of_node, of_listeners


def listener_setting_name(listener: str, setting: str) -> str:
    """Return the full name of a listener's setting."""
    return f"{LISTENER_PREFIX}{listener.lower()}.{setting}"


def _parse_name(name: str) -> tuple[str, str]:
    """Return the listener and its setting, two empty strings for any other name."""
    if name.startswith(LISTENER_PREFIX):
        listener, _, setting = name.removeprefix(LISTENER_PREFIX).partition(".")
        if listener and setting in settings_of(ListenerConfig):
            return listener.lower(), setting
    return "", ""
