"""Plots a soak: one panel for every kind of figure, over time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bench.soak.observed import Row

PANELS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("Memory", "MB", ("node RSS MB", "node USS MB", "worker RSS MB", "worker USS MB")),
    ("Produce latency", "ms", ("produce p50 ms", "produce p99 ms", "load late p99 ms")),
    ("End to end", "ms", ("end to end p50 ms", "end to end p99 ms")),
    ("Descriptors, threads", "", ("node descriptors", "worker descriptors", "node threads")),
    ("Processor", "cores", ("node cores", "worker cores", "machine cores")),
    ("Throughput", "MB/s", ("produced MB/s", "consumed MB/s", "cold MB/s")),
    ("Disk", "MB", ("disk MB", "objects MB", "log MB")),
    ("Metadata", "MB", ("sqlite MB", "sqlite wal MB")),
    ("Segments", "", ("local segments", "tiered segments")),
)
COLUMNS = 3
LOGARITHMIC = ("ms",)  # units: a p99 beside a p50


def draw(rows: Sequence[Row], path: Path, *, title: str, judged_from: float) -> None:
    """Write the PNG; ``judged_from`` is the second at which the warm-up ends."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    height = -(-len(PANELS) // COLUMNS)
    figure, panels = pyplot.subplots(height, COLUMNS, figsize=(15, 3 * height), sharex=True)
    minutes = [row["seconds"] / 60 for row in rows]
    for panel, (name, unit, series) in zip(panels.flat, PANELS, strict=True):
        for one in series:
            values = [row.get(one, float("nan")) for row in rows]
            panel.plot(minutes, values, label=one, linewidth=1)
        panel.axvline(judged_from / 60, color="grey", linestyle=":", linewidth=1)
        panel.set_title(f"{name} ({unit})" if unit else name, fontsize=10)
        panel.legend(fontsize=7)
        panel.grid(alpha=0.3)
        if unit in LOGARITHMIC:
            panel.set_yscale("log")
        else:
            panel.set_ylim(bottom=0)
    for panel in panels[-1]:
        panel.set_xlabel("minutes; judged from the dotted line on")
    figure.suptitle(title)
    figure.tight_layout()
    figure.savefig(path, dpi=110)
    pyplot.close(figure)
