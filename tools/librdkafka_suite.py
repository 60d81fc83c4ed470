"""librdkafka with its own test suite, built from the source that an npm package brings along."""

from __future__ import annotations

from pathlib import Path

from tools.places import TOOLS_DIR, require, run

VERSION = "2.12.0"
_PACKAGE = "node-rdkafka@3.6.1"  # which has this version's source, tests included
_ROOT = TOOLS_DIR / f"librdkafka-suite-{VERSION}"
_SOURCE = _ROOT / "package" / "deps" / "librdkafka"


def install() -> None:
    """Make ``folder`` work; takes some minutes."""
    if folder() is not None:
        return
    _ROOT.mkdir(parents=True, exist_ok=True)
    run([require("npm"), "pack", _PACKAGE, "--silent"], cwd=_ROOT)
    (archive,) = _ROOT.glob("*.tgz")
    run([require("tar"), "xzf", archive], cwd=_ROOT)
    run(["./configure", "--disable-gssapi"], cwd=_SOURCE)
    run([require("make"), "libs"], cwd=_SOURCE)
    run(["make", "-C", "tests", "build"], cwd=_SOURCE)


def folder() -> Path | None:
    """Return the folder with the program ``test-runner``, or ``None`` if it is missing."""
    tests = _SOURCE / "tests"
    return tests if (tests / "test-runner").exists() else None


def libraries() -> str:
    """Return the value of ``LD_LIBRARY_PATH`` for the program."""
    return f"{_SOURCE / 'src'}:{_SOURCE / 'src-cpp'}"
