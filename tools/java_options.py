"""Java's options in tests, for a quick start and little use of the cores.

The simplest collector, and no optimizing compiler, which would take long for programs that run
for seconds. Not for benchmarks.
"""

from __future__ import annotations

QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
