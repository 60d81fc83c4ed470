"""The stores that one scrub works on, and its rules."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tidelog_core.metadata.store import MetadataStore
from tidelog_core.objects.store import ObjectStore

from tidelog_functions.invocation import TimeLimit
from tidelog_functions.scrub.settings import ScrubSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubRun:
    """One cluster's stores, and the ages, the clock and the time limit of one run."""

    store: MetadataStore
    objects: ObjectStore
    cluster_id: str
    settings: ScrubSettings
    clock_ms: Callable[[], int]
    limit: TimeLimit
