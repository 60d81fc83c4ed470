"""Plots the figures: bars, and lines by number of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from bench.peers import latency, partitions, start, throughput
from bench.peers.figures import BARE, Key, Spread

mpl.use("Agg")
_DOTS_PER_INCH = 80
_COLOURS = {"tidelog": "#1f77b4", "kafka": "#444444", "tansu": "#d98c3f", BARE: "#bbbbbb"}
_BARS = {
    "produce-cpu.png": (throughput.WORKLOAD, "produce_cpu_s_per_gb"),
    "fetch-cpu.png": (throughput.WORKLOAD, "fetch_cpu_s_per_gb"),
    "produce-rate.png": (throughput.WORKLOAD, "produce_mb_per_s"),
    "fetch-rate.png": (throughput.WORKLOAD, "fetch_mb_per_s"),
    "latency-p50.png": (latency.WORKLOAD, "p50_ms"),
    "latency-p99.png": (latency.WORKLOAD, "p99_ms"),
    "latency-p99.9.png": (latency.WORKLOAD, "p99.9_ms"),
    "start.png": (start.WORKLOAD, "first_record_s"),
    "idle-memory.png": (start.WORKLOAD, "idle_memory_mb"),
}
_GROWTH = ("created_memory_mb", "restart_first_record_s", "metadata_cpu_ms")


def write_plots(medians: Mapping[Key, Spread], folder: Path) -> list[str]:
    """Write a plot of each measured metric; return the files' names."""
    written = [
        name
        for name, (workload, metric) in _BARS.items()
        if _write_bars(medians, workload, metric, folder / name)
    ]
    if _write_growth(medians, folder / "partitions.png"):
        written.append("partitions.png")
    return written


def _write_bars(medians: Mapping[Key, Spread], workload: str, metric: str, path: Path) -> bool:
    mine = {
        (key[1], key[3]): value for key, value in medians.items() if key[::2] == (workload, metric)
    }
    if not mine:
        return False
    cases = list(dict.fromkeys(case for case, _ in mine))
    peers = [peer for peer in _COLOURS if any((case, peer) in mine for case in cases)]
    figure, axes = plt.subplots(figsize=(max(4.0, 1.0 * len(cases) + 2), 4))
    width = 0.8 / len(peers)
    for index, peer in enumerate(peers):
        at = [number for number, case in enumerate(cases) if (case, peer) in mine]
        spread = [mine[cases[number], peer] for number in at]
        heights = [one.median for one in spread]
        errors = [
            [one.median - one.lowest for one in spread],
            [one.highest - one.median for one in spread],
        ]
        left = [number + (index - (len(peers) - 1) / 2) * width for number in at]
        axes.bar(left, heights, width, yerr=errors, label=peer, color=_COLOURS[peer])
    axes.set_xticks(range(len(cases)), cases, rotation=30, ha="right")
    axes.set_title(f"{workload}: {metric}")
    axes.legend()
    _save(figure, path)
    return True


def _write_growth(medians: Mapping[Key, Spread], path: Path) -> bool:
    found = {key[1:]: one.median for key, one in medians.items() if key[0] == partitions.WORKLOAD}
    figure, panels = plt.subplots(1, len(_GROWTH), figsize=(4 * len(_GROWTH), 3.5))
    for metric, axes in zip(_GROWTH, panels, strict=True):
        for peer, colour in _COLOURS.items():
            points = [
                (count, found[partitions.name_of(count), metric, peer])
                for count in partitions.COUNTS
                if (partitions.name_of(count), metric, peer) in found
            ]
            if points:
                axes.loglog(*zip(*points, strict=True), marker="o", label=peer, color=colour)
        axes.set_title(f"{metric} by partitions")
    if found:
        panels[0].legend()
        _save(figure, path)
    else:
        plt.close(figure)
    return bool(found)


def _save(figure: Figure, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=_DOTS_PER_INCH)
    plt.close(figure)
