"""When a benchmark ran, and on which machine: the first lines of its report."""

from __future__ import annotations

import datetime
import os
import platform


def machine_facts(*, seconds: float, load_before: float) -> list[str]:
    """Return the facts; the run took ``seconds``, and ``load_before`` is of the minute before."""
    return [
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d %H:%M} UTC, {seconds / 60:.0f} minutes",
        f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}, "
        f"Python {platform.python_version()}",
        f"load of the machine before (1 minute): {load_before:.1f}",
    ]
