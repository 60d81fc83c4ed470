"""iptables from Debian's packages, unpacked into the folder of tools where the machine has none.

netavark, which gives podman's containers their network, runs ``iptables`` and ``ip6tables``.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from tools.debian import unpack
from tools.places import TOOLS_DIR, ToolAbsent

PACKAGES = (
    "iptables",
    "libip4tc2",
    "libip6tc2",
    "libmnl0",
    "libnetfilter-conntrack3",
    "libnfnetlink0",
    "libnftnl11",
    "libxtables12",
)
COMMANDS = ("iptables", "ip6tables")
_ROOT = TOOLS_DIR / "iptables"
_PROGRAM = _ROOT / "usr" / "sbin" / "xtables-nft-multi"
_BIN = _ROOT / "bin"
_COMMAND = """#!/bin/sh
export LD_LIBRARY_PATH="{libraries}" XTABLES_LIBDIR="{libraries}/xtables"
exec "{program}" {command} "$@"
"""


def folder_of_iptables() -> Path:
    """Return the folder that holds the commands, after an installation if the machine has none.

    Raises ``ToolAbsent``.
    """
    found = shutil.which(COMMANDS[0])
    if found is not None:
        return Path(found).parent
    if not (_BIN / COMMANDS[-1]).exists():
        _install()
    return _BIN


def _install() -> None:
    unpack(PACKAGES, _ROOT)
    libraries = next((_ROOT / "usr" / "lib").glob("*/libxtables.so.12"), None)
    if libraries is None:
        raise ToolAbsent("Debian's packages of iptables have no libxtables")
    _BIN.mkdir(exist_ok=True)
    for command in COMMANDS:
        script = _BIN / command
        script.write_text(
            _COMMAND.format(libraries=libraries.parent, program=_PROGRAM, command=command)
        )
        script.chmod(0o755)
