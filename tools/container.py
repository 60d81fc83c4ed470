"""Builds the image by buildah, on a base made by debootstrap: no registry of images is needed.

Needs root, and Debian's packages ``buildah`` and ``debootstrap``. ``tools.compose`` runs the image
on an engine.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tools.places import ROOT, TOOLS_DIR, ToolAbsent, require, run

SUITE = "trixie"  # its OpenSSL is that of the Dockerfile's base
BASE = f"localhost/tidelog-base-{SUITE}"
IMAGE = "localhost/tidelog"
DOCKERFILE = "infra/container/Dockerfile"
FOLDER = TOOLS_DIR / "container"
# What a registry behind an inspecting proxy needs: pip is told the machine's authorities.
_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
_APT_CONF = Path("/etc/apt/apt.conf.d")


def check_tools() -> None:
    """Raise ``ToolAbsent`` if this machine cannot build the image."""
    if os.geteuid() != 0:
        raise ToolAbsent("building an image needs root here")
    for program in ("buildah", "debootstrap"):
        require(program)


def build_image() -> None:
    """Build the image from the working tree. Raises ``ToolAbsent`` with what went wrong."""
    check_tools()
    FOLDER.mkdir(parents=True, exist_ok=True)
    if subprocess.run(_buildah("inspect", BASE), capture_output=True, check=False).returncode:
        _make_base()
    with tempfile.TemporaryDirectory() as scratch:
        pip = Path(scratch) / "pip.conf"
        pip.write_text("[global]\ncert = /authorities.pem\n")
        mounts = {pip: "/etc/pip.conf", _CERTIFICATES: "/authorities.pem"}
        mounts |= {path: f"/etc/apt/apt.conf.d/{path.name}" for path in _apt_files()}
        options = [f"--volume={path}:{place}:ro" for path, place in mounts.items()]
        options += ["--isolation=chroot", f"--build-arg=BASE={BASE}", "--file", DOCKERFILE]
        run(_buildah("build", *options, "--tag", IMAGE, "."), cwd=ROOT)


def mount_image() -> tuple[str, Path]:
    """Return a new container of the image, and where its files are. ``remove`` it."""
    container = _output(_buildah("from", "--isolation=chroot", IMAGE))
    return container, Path(_output(_buildah("mount", container)))


def remove(container: str) -> None:
    """Remove a container."""
    run(_buildah("rm", container))


def configuration() -> dict[str, Any]:
    """Return the image's configuration, as OCI names it."""
    told = json.loads(_output(_buildah("inspect", "--type=image", IMAGE)))
    config: dict[str, Any] = told["OCIv1"]["config"]
    return config


def size_bytes(files: Path) -> int:
    """Return the size of a container's files."""
    return int(_output(["du", "-sbx", str(files)]).split()[0])


def _make_base() -> None:
    debootstrap = require("debootstrap")
    mirror = _output(
        ["apt-get", "indextargets", "--format", "$(SITE)", "Created-By: Packages"]
    ).split()[0]
    files = FOLDER / "base"
    shutil.rmtree(files, ignore_errors=True)
    included = "--include=ca-certificates,python3,python3-venv"
    run([debootstrap, "--variant=minbase", included, SUITE, files, mirror])
    container = _output(_buildah("from", "scratch"))
    run(_buildah("add", "--quiet", container, files, "/"))
    run(_buildah("commit", "--quiet", container, BASE))
    remove(container)
    shutil.rmtree(files)


def _apt_files() -> Sequence[Path]:
    """Return the machine's own settings of apt: mirrors may need some."""
    return [path for path in _APT_CONF.glob("99*") if path.is_file()]


def _buildah(verb: str, *arguments: str | Path) -> list[str | Path]:
    places = (f"--root={FOLDER}/storage", f"--runroot={FOLDER}/run")
    return ["buildah", *places, verb, *arguments]


def _output(command: Sequence[str | Path]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise ToolAbsent(f"{command[0]} failed: {done.stderr.strip()[-1000:]}")
    return done.stdout.strip()
