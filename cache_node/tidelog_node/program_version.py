"""The version of the program that runs."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def program_version() -> str:
    """Return Tidelog's version, ``unknown`` where its wheel is not installed."""
    try:
        return version("tidelog")
    except PackageNotFoundError:
        return "unknown"  # The bundle for AWS has the packages without their wheel.
