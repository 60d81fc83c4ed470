"""Has the machine's free memory backed before something is measured."""

from __future__ import annotations

import subprocess
import sys

import psutil


def touch_free_memory(size_bytes: int | None = None) -> None:
    """Write to so much of the memory that is free, half of it without a size, in another process.

    A hypervisor may have taken it back. The first page of a log that comes to lie in it costs a
    fault outside of the machine, 1.3 s a GB where this was seen: more than what is measured. The
    system gives out first what was freed last, so what is measured directly afterwards gets these
    pages, if it needs no more of them.
    """
    free = psutil.virtual_memory().free
    size_bytes = free // 2 if size_bytes is None else min(size_bytes, free // 2)
    program = "import sys; b'1' * int(sys.argv[1])"
    subprocess.run([sys.executable, "-I", "-S", "-c", program, str(size_bytes)], check=True)
