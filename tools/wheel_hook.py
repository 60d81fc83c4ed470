"""Puts the compiled hot path into a wheel, which then fits only this platform and Python.

The machine code of the Arrow kernels goes there too, if numba is installed.

Off unless ``HATCH_BUILD_HOOKS_ENABLE=1``: ``make wheel`` sets it. Not for an isolated build:
mypyc needs the types of everything that the compiled modules import.
"""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class CompiledWheel(BuildHookInterface[Any]):
    """Compiles the modules and adds each file to the wheel."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the wheel is written."""
        if version == "editable":
            return  # compiled modules would hide later edits
        sys.path.insert(0, self.root)
        from tools.compiled import OVERLAY, OVERLAY_VARIABLE, write_overlay

        overlay = write_overlay(Path(os.environ.get(OVERLAY_VARIABLE, OVERLAY)))
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        for module in overlay.rglob("*.so"):
            build_data["force_include"][str(module)] = str(module.relative_to(overlay))
        if find_spec("numba") is not None:
            from tools import kernel_code

            file = kernel_code.build(overlay.with_name("kernel_code"))
            build_data["force_include"][str(file)] = str(kernel_code.PLACE / file.name)
