"""Options with which Java starts quickly and uses little CPU, for tests.

They select the simplest garbage collector and no optimizing compiler, which does not pay for
programs that run for seconds. Not for benchmarks.
"""

from __future__ import annotations

QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
