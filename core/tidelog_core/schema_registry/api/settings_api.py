"""The calls of ``/config`` and ``/mode``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tidelog_core.schema_registry.api.calls import Call, Handle, Options, Require, Right
from tidelog_core.schema_registry.registry import SchemaRegistry
from tidelog_core.schema_registry.settings import RegistryConfig, RegistrySettings
from tidelog_core.schemas.model import Compatibility, Mode
from tidelog_core.schemas.refusals import (
    RegistryRefusal,
    invalid_compatibility,
    invalid_mode,
    invalid_subject,
)
from tidelog_core.schemas.subject_names import is_valid_subject

# Settings of Confluent's that are not here: refused, so that nobody relies on them.
UNSUPPORTED = frozenset(
    {
        *("alias", "aliasForDeks", "validateFields", "validateNewSchemas", "validateRules"),
        *("compatibilityPolicy", "defaultMetadata", "overrideMetadata", "defaultRuleSet"),
        *("overrideRuleSet",),
    }
)

# What a client may take back by sending null, and the field of ``RegistryConfig``.
_FIELDS = {
    "compatibility": "compatibility",
    "compatibilityLevel": "compatibility",
    "normalize": "normalize",
    "compatibilityGroup": "compatibility_group",
}
GROUP_CHARACTERS_MAX = 400


class SettingsApi:
    """Answers the calls about settings. For the tasks of one event loop."""

    def __init__(self, registry: SchemaRegistry, require: Require) -> None:
        self._settings = RegistrySettings(registry)
        self._require = require

    def routes(self) -> dict[tuple[str, ...], dict[str, Handle]]:
        """Return the handlers by path and method."""
        config = {"GET": self._config, "PUT": self._set_config, "DELETE": self._delete_config}
        mode = {"GET": self._mode, "PUT": self._set_mode, "DELETE": self._delete_mode}
        return {
            ("config",): dict(config),
            ("config", "*"): dict(config),
            ("mode",): dict(mode),
            ("mode", "*"): dict(mode),
        }

    async def _config(self, call: Call, options: Options, path: list[str]) -> object:
        subject = _subject(path)
        self._require(call, Right.READ_SETTINGS, subject)
        or_wider = options.is_set("defaultToGlobal")
        return _shown(await self._settings.config(subject, or_wider=or_wider), "compatibilityLevel")

    async def _set_config(self, call: Call, options: Options, path: list[str]) -> object:
        del options
        subject = _subject(path)
        self._require(call, Right.WRITE_SETTINGS, subject)
        body = call.json()
        cleared = [name for key, name in _FIELDS.items() if key in body and body[key] is None]
        set_now = await self._settings.set_config(subject, _parse_config(body), cleared=cleared)
        return _shown(set_now, "compatibility")

    async def _delete_config(self, call: Call, options: Options, path: list[str]) -> object:
        del options
        subject = _subject(path)
        self._require(call, Right.WRITE_SETTINGS, subject)
        return _shown(await self._settings.delete_config(subject), "compatibilityLevel")

    async def _mode(self, call: Call, options: Options, path: list[str]) -> object:
        subject = _subject(path)
        self._require(call, Right.READ_SETTINGS, subject)
        or_wider = options.is_set("defaultToGlobal")
        return {"mode": (await self._settings.mode(subject, or_wider=or_wider)).value}

    async def _set_mode(self, call: Call, options: Options, path: list[str]) -> object:
        subject = _subject(path)
        self._require(call, Right.WRITE_SETTINGS, subject)
        if not is_valid_subject(subject, for_settings=True):
            raise invalid_subject(subject)
        name = call.json().get("mode")
        if not isinstance(name, str) or name.upper() not in Mode.__members__:
            raise invalid_mode()
        mode = Mode(name.upper())
        if mode is Mode.IMPORT:
            self._require(call, Right.WRITE_SETTINGS, "")  # Its ids are those of all subjects.
        await self._settings.set_mode(subject, mode, force=options.is_set("force"))
        return {"mode": name}

    async def _delete_mode(self, call: Call, options: Options, path: list[str]) -> object:
        subject = _subject(path)
        is_recursive = options.is_set("recursive")
        self._require(call, Right.WRITE_SETTINGS, "" if is_recursive else subject)
        mode = await self._settings.delete_mode(subject, is_recursive=is_recursive)
        return {} if mode is None else {"mode": mode.value}


def _subject(path: list[str]) -> str:
    return path[1] if len(path) > 1 else ""


def _parse_config(body: Mapping[str, Any]) -> RegistryConfig:
    """Return the settings of a body. Raises ``RegistryRefusal``."""
    # Answers have it by the second name, and clients send those back.
    level = body.get("compatibility", body.get("compatibilityLevel"))
    normalize, group = body.get("normalize"), body.get("compatibilityGroup")
    found = sorted(name for name in UNSUPPORTED & body.keys() if body[name] is not None)
    if found:
        raise RegistryRefusal(422, f"{', '.join(found)}: not supported by this registry")
    if normalize is not None and not isinstance(normalize, bool):
        raise RegistryRefusal(422, "normalize must be true or false")
    if group is not None and not (isinstance(group, str) and len(group) <= GROUP_CHARACTERS_MAX):
        text = f"compatibilityGroup must be a text of up to {GROUP_CHARACTERS_MAX} characters"
        raise RegistryRefusal(422, text)
    if level is None:
        return RegistryConfig(None, normalize, group)
    if not isinstance(level, str) or level.upper() not in Compatibility.__members__:
        raise invalid_compatibility()
    return RegistryConfig(Compatibility(level.upper()), normalize, group)


def _shown(config: RegistryConfig, level_name: str) -> dict[str, Any]:
    shown: dict[str, Any] = {}
    if config.normalize is not None:
        shown["normalize"] = config.normalize
    if config.compatibility is not None:
        shown[level_name] = config.compatibility.value
    if config.compatibility_group is not None:
        shown["compatibilityGroup"] = config.compatibility_group
    return shown
