"""Has the machine's free memory backed before something is measured."""

from __future__ import annotations

import subprocess
import sys

import psutil


def touch_free_memory() -> None:
    """Write to half of the memory that is free, in a process that ends.

    A hypervisor may have taken it back. The first page of a log that comes to lie in it costs a
    fault outside of the machine, 1.3 s a GB where this was seen: more than what is measured.
    """
    program = "import sys; b'1' * int(sys.argv[1])"
    free = psutil.virtual_memory().free
    subprocess.run([sys.executable, "-c", program, str(free // 2)], check=True)
