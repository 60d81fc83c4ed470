"""Ports that processes choose at the same time."""

from __future__ import annotations

import subprocess
import sys

from tools.ports import free_ports

CHOOSE = """
import sys, tools.ports
tools.ports._next = int(sys.argv[1])
print(tools.ports.free_ports(3))
"""


def test_what_one_process_has_chosen_no_other_does_though_nobody_listens_yet() -> None:
    first = free_ports(3)
    for begin in (first, first + 2):
        chosen = subprocess.run(
            [sys.executable, "-c", CHOOSE, str(begin)], check=True, stdout=subprocess.PIPE
        )
        assert not set(range(int(chosen.stdout), int(chosen.stdout) + 3)) & set(
            range(first, first + 3)
        )
