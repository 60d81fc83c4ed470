"""The wall clocks of other processes, as a test sets them."""

from __future__ import annotations

import os
import struct
from pathlib import Path

_HOOK = Path(__file__).parent / "clock"  # has the ``sitecustomize`` that sets it


class WallClock:
    """How far the wall clock of one process is off the real one, in a file that it reads."""

    def __init__(self, path: Path) -> None:
        self._path = path
        path.write_bytes(bytes(8))

    def environment(self) -> dict[str, str]:
        """Return what the process needs in its environment."""
        path = os.pathsep.join(filter(None, (str(_HOOK), os.environ.get("PYTHONPATH"))))
        return {"PYTHONPATH": path, "TIDELOG_CHAOS_CLOCK": str(self._path)}

    def set_off(self, seconds: float) -> None:
        """Put the clock so far off the real one, at once."""
        with self._path.open("r+b") as file:
            file.write(struct.pack("<q", int(seconds * 1e9)))
