"""The compose file: checked by Compose's own loader, and run by podman-compose on podman.

compose-go is the loader of Docker Compose, built from the Go proxy. podman is a container engine;
it needs root, and Debian's packages ``podman``, ``runc`` and ``netavark``; ``tools.iptables`` has
what netavark runs. Its containers are in a network namespace of their own, so their ports are free
whatever else runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tools import container
from tools.iptables import folder_of_iptables
from tools.places import ROOT, TOOLS_DIR, ToolAbsent, require, run

FILE = ROOT / "infra" / "container" / "compose.yaml"
LOADER = "github.com/compose-spec/compose-go/v2/cmd@v2.16.2"
PODMAN_COMPOSE = "podman-compose==1.6.0"
NAMESPACE = "tidelog-compose"
FOLDER = TOOLS_DIR / "compose"
_STAMP = FOLDER / ".installed-1"
_LOADER = FOLDER / "cmd"
_PACKAGES = FOLDER / "packages"
_CONTAINERS, _STORAGE = FOLDER / "containers.conf", FOLDER / "storage.conf"
_RUNTIME = FOLDER / "runc"
# Not every machine lets podman raise the limits of a process, so containers keep the machine's.
_RUNTIME_PROGRAM = """#!{python} -I
import json, os, pathlib, sys
arguments = sys.argv[1:]
for option, name in (("--bundle", "config.json"), ("--process", "")):
    if option in arguments:
        path = pathlib.Path(arguments[arguments.index(option) + 1], name)
        told = json.loads(path.read_text())
        told.get("process", told)["rlimits"] = []
        path.write_text(json.dumps(told))
os.execv("{runc}", ["runc", *arguments])
"""


def install_loader() -> None:
    """Build compose-go. Raises ``ToolAbsent``."""
    if _LOADER.exists():
        return
    go = require("go")
    FOLDER.mkdir(parents=True, exist_ok=True)
    run(["env", f"GOBIN={FOLDER}", "GOFLAGS=-mod=mod", go, "install", LOADER], cwd=FOLDER)


def load(path: Path) -> subprocess.CompletedProcess[str]:
    """Load a file as Docker Compose does; prints the project as JSON, or what is wrong."""
    command: list[str | Path] = [_LOADER, "-format", "json", path]
    return subprocess.run(command, cwd=path.parent, capture_output=True, text=True, check=False)


def install_engine() -> None:
    """Set podman and podman-compose up for the image of ``tools.container``.

    Raises ``ToolAbsent``.
    """
    if os.geteuid() != 0:
        raise ToolAbsent("podman needs root here")
    require("podman")
    runc = require("runc")
    if not Path("/usr/lib/podman/netavark").exists():
        raise ToolAbsent("netavark is not on this machine: install it")
    folder_of_iptables()
    FOLDER.mkdir(parents=True, exist_ok=True)
    _RUNTIME.write_text(_RUNTIME_PROGRAM.format(python=sys.executable, runc=runc))
    _RUNTIME.chmod(0o755)
    _CONTAINERS.write_text(f'[engine]\nruntime = "{_RUNTIME}"\ncgroup_manager = "cgroupfs"\n')
    places = f'graphroot = "{container.FOLDER}/storage"\nrunroot = "{container.FOLDER}/run"\n'
    _STORAGE.write_text(f'[storage]\ndriver = "overlay"\n{places}')
    if not _STAMP.exists():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        run([*pip, "--target", _PACKAGES, PODMAN_COMPOSE])
        _STAMP.touch()


@contextmanager
def network() -> Iterator[None]:
    """Have a network namespace for the block, in which ``podman`` and ``compose`` run."""
    ip = require("ip")
    run([ip, "netns", "add", NAMESPACE])
    try:
        run([ip, "-n", NAMESPACE, "link", "set", "lo", "up"])
        yield
    finally:
        run([ip, "netns", "delete", NAMESPACE])


def podman(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run podman, in the network namespace."""
    return _run("podman", *arguments)


def compose(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run podman-compose with the file, in the network namespace."""
    return _run(sys.executable, "-m", "podman_compose", "-f", str(FILE), *arguments)


def inside(*command: str) -> list[str]:
    """Return a command that runs in the network namespace, and shares everything else."""
    return [require("nsenter"), f"--net=/run/netns/{NAMESPACE}", *command]


def _run(*command: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "CONTAINERS_CONF": str(_CONTAINERS),
        "CONTAINERS_STORAGE_CONF": str(_STORAGE),
        "PATH": f"{os.environ['PATH']}{os.pathsep}{folder_of_iptables()}",
        "PYTHONPATH": str(_PACKAGES),
    }
    return subprocess.run(
        inside(*command),
        env=environment,
        cwd=FILE.parent,
        capture_output=True,
        text=True,
        check=False,
    )
