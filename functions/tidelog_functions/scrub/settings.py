"""The scrub's settings.

TIDELOG_SCRUB_ORPHAN_AGE_MS     age at which an object that no metadata names, and that has
                                another explanation, is removed, counted from the first
                                scrub that saw it so, milliseconds (86400000, a day; at
                                least an hour)
TIDELOG_SCRUB_DOUBTFUL_AGE_MS   the same for an object that a restore of the metadata might
                                need, milliseconds (604800000, a week; not less than the other)
TIDELOG_SCRUB_DRY_RUN           true: report, remove nothing (false)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tidelog_core.errors import InvalidConfig
from tidelog_core.retention.orphans import AgeLimits
from tidelog_core.setting import parse_bool

ORPHAN_AGE_MS = 86_400_000
DOUBTFUL_AGE_MS = 604_800_000
AGE_MS_MIN = 3_600_000  # longer than any upload with its retries


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubSettings:
    """The ages and the mode of a scrub."""

    limits: AgeLimits
    is_dry_run: bool = False


def parse_scrub_settings(environment: Mapping[str, str]) -> ScrubSettings:
    """Return the settings. Raises ``InvalidConfig`` with every problem at once."""
    problems: list[str] = []
    orphan_age_ms = _age_ms(environment, "TIDELOG_SCRUB_ORPHAN_AGE_MS", ORPHAN_AGE_MS, problems)
    doubtful_age_ms = _age_ms(
        environment, "TIDELOG_SCRUB_DOUBTFUL_AGE_MS", max(DOUBTFUL_AGE_MS, orphan_age_ms), problems
    )
    if doubtful_age_ms < orphan_age_ms:
        problems.append("TIDELOG_SCRUB_DOUBTFUL_AGE_MS must not be less than the orphans' age")
    is_dry_run = False
    text = environment.get("TIDELOG_SCRUB_DRY_RUN", "false")
    try:
        is_dry_run = parse_bool(text)
    except ValueError as error:
        problems.append(f"TIDELOG_SCRUB_DRY_RUN {text!r} {error}")
    if problems:
        raise InvalidConfig(problems)
    limits = AgeLimits(orphan_age_ms=orphan_age_ms, doubtful_age_ms=doubtful_age_ms)
    return ScrubSettings(limits=limits, is_dry_run=is_dry_run)


def _age_ms(environment: Mapping[str, str], name: str, default: int, problems: list[str]) -> int:
    text = environment.get(name, str(default))
    if not text.isdecimal() or int(text) < AGE_MS_MIN:
        problems.append(f"{name} {text!r} must be a whole number of at least {AGE_MS_MIN}")
        return default
    return int(text)
