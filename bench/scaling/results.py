"""Figures of runs by label, in ``bench/results/scaling``."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.scaling.dimension import Measure
from bench.scaling.measuring import Figures

FOLDER = Path(__file__).parents[1] / "results" / "scaling"


def read(label: str) -> dict[str, dict[int, Figures]]:
    """Return the figures of a label by dimension and step; none where there are none."""
    path = FOLDER / f"{label}.json"
    written = json.loads(path.read_text()) if path.exists() else {}
    return {
        name: {
            int(count): {Measure[one]: value for one, value in figures.items()}
            for count, figures in seen.items()
        }
        for name, seen in written.items()
    }


def add(label: str, name: str, seen: Mapping[int, Figures]) -> None:
    """Keep the figures of a dimension in the place of those that the label had of it."""
    everything = {**read(label), name: seen}
    figures = {
        name: {
            str(count): {one.name: value for one, value in figures.items()}
            for count, figures in seen.items()
        }
        for name, seen in everything.items()
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{label}.json").write_text(json.dumps(figures, indent=2) + "\n")


def write_page(label: str, pages: Sequence[str]) -> None:
    """Write what was printed."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{label}.md").write_text("\n".join(pages))
