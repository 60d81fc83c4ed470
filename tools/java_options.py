"""How Java is started for a test: it is to be ready soon and to leave the cores to others.

The simplest collector, and no optimizing compiler: it would compile at length what runs for
seconds. Not for benchmarks.
"""

from __future__ import annotations

QUICK_JAVA = ("-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
