"""Stores figures of runs by label, in files of one folder."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.scaling.dimension import Measure
from bench.scaling.measuring import Figures


@dataclass(frozen=True, slots=True)
class Results:
    """``<label>.json`` with figures and ``<label>.md`` with tables, below a folder."""

    folder: Path

    def read(self, label: str) -> dict[str, dict[int, Figures]]:
        """Return the figures of a label by dimension and step, empty without a file."""
        path = self.folder / f"{label}.json"
        written = json.loads(path.read_text()) if path.exists() else {}
        return {
            name: {
                int(count): {Measure[one]: value for one, value in figures.items()}
                for count, figures in seen.items()
            }
            for name, seen in written.items()
        }

    def add(self, label: str, name: str, seen: Mapping[int, Figures]) -> None:
        """Replace the label's figures of a dimension."""
        figures = {
            name: {
                str(count): {one.name: value for one, value in figures.items()}
                for count, figures in seen.items()
            }
            for name, seen in {**self.read(label), name: seen}.items()
        }
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{label}.json").write_text(json.dumps(figures, indent=2) + "\n")

    def write_page(self, label: str, pages: Sequence[str]) -> None:
        """Write the printed tables."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / f"{label}.md").write_text("\n".join(pages))
