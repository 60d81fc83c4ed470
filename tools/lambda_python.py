"""Installs the Python version of the Lambda functions, for tests only.

Debian has another version. Maven Central has JavaCPP's build of CPython: an interpreter with its
standard library, made for calling Python from Java. It also runs by itself, once its program is
executable and its libraries are where the modules expect them.
"""

from __future__ import annotations

import platform
import shutil
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tools import maven
from tools.places import TOOLS_DIR, ToolAbsent, run

VERSION = "3.12.1"
MINOR = "3.12"
_JAVACPP = "1.5.10"
_PLATFORM = "linux-x86_64"
_JAR = f"cpython-{VERSION}-{_JAVACPP}-{_PLATFORM}.jar"
_ROOT = TOOLS_DIR / f"python-{VERSION}"
_PROGRAM = _ROOT / "bin" / f"python{MINOR}"


def install() -> None:
    """Install the version, which ``closest`` then returns."""
    if _PROGRAM.exists():
        return
    if (sys.platform, platform.machine()) != ("linux", "x86_64"):
        raise ToolAbsent(f"there is one for {_PLATFORM} only")
    scratch = TOOLS_DIR / f"python-{VERSION}.part"
    shutil.rmtree(scratch, ignore_errors=True)
    maven.fetch_jars(scratch, f"org.bytedeco:cpython:{VERSION}-{_JAVACPP}:{_PLATFORM}")
    with zipfile.ZipFile(scratch / "jars" / _JAR) as jar:
        jar.extractall(scratch)
    root = scratch / "org" / "bytedeco" / "cpython" / _PLATFORM
    (root / "bin" / _PROGRAM.name).chmod(0o755)
    # The modules search libraries beside themselves and one level up.
    for library in root.glob("libffi.so.*"):
        library.rename(root / "lib" / f"python{MINOR}" / library.name)
    run([root / "bin" / _PROGRAM.name, "-c", "import ctypes, sqlite3, ssl, zlib"])
    root.rename(_ROOT)
    shutil.rmtree(scratch)


@dataclass(frozen=True, slots=True)
class Python:
    """An interpreter."""

    program: Path
    minor: str  # the version, such as «3.12»


def closest() -> Python:
    """Return Lambda's version if it is installed, else the version that runs this."""
    if _PROGRAM.exists():
        return Python(_PROGRAM, MINOR)
    own = Path(sys.base_prefix) / "bin" / "python3"
    return Python(own, f"{sys.version_info.major}.{sys.version_info.minor}")
