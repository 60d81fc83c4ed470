"""Which settings count for a subject: its own, else its context's, else those of everything.

Source: ``config`` and ``mode`` of Confluent's ``InMemoryCache``. As there, the settings without a
name are those of the default context, and ``:.__GLOBAL:`` has those of all contexts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tidelog_core.metadata.records import check
from tidelog_core.metadata.schema_records import EVERYTHING, SchemaSettings
from tidelog_core.metadata.store import Check
from tidelog_core.schemas.model import DEFAULT_COMPATIBILITY, Compatibility, Mode
from tidelog_core.schemas.subject_names import GLOBAL_CONTEXT, SubjectName

ALL_CONTEXTS = SubjectName(GLOBAL_CONTEXT, "").text


def scope_of(name: SubjectName) -> str:
    """Return the scope of the settings that were set under this name."""
    return EVERYTHING if name.names_default_context else name.text


def scopes_of(name: SubjectName) -> list[str]:
    """Return the scopes whose settings may count, the narrowest first."""
    context = name.in_context(name.context).context_prefix or EVERYTHING
    scopes = [context, ALL_CONTEXTS] if context != ALL_CONTEXTS else [ALL_CONTEXTS]
    return [name.text, *scopes] if name.subject else scopes


@dataclass(frozen=True, slots=True)
class SettingsInScope:
    """The settings of all scopes of a subject, the narrowest first; empty where there are none."""

    found: Sequence[SchemaSettings]

    @property
    def compatibility(self) -> Compatibility:
        """The level that counts."""
        levels = (one.compatibility for one in self.found)
        return next((one for one in levels if one is not None), DEFAULT_COMPATIBILITY)

    @property
    def mode(self) -> Mode:
        """The mode that counts."""
        modes = [one.mode for one in self.found if one.mode is not None]
        if Mode.READONLY_OVERRIDE in modes:
            return Mode.READONLY_OVERRIDE
        return modes[0] if modes else Mode.READWRITE

    @property
    def normalize(self) -> bool:
        """Whether new schemas are normalized."""
        return next((one.normalize for one in self.found if one.normalize is not None), False)

    @property
    def compatibility_group(self) -> str:
        """The property of schemas' metadata whose values are compared among themselves; "": all."""
        return next((one.compatibility_group for one in self.found if one.compatibility_group), "")

    def checks(self) -> list[Check]:
        """Return the conditions that none of them has changed."""
        return [check(one) for one in self.found]
