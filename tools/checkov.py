"""checkov, which knows what people get wrong in templates, in an environment of its own.

``python -m tools.checkov`` prints its findings in the AWS templates.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tools.places import ROOT, TOOLS_DIR, ToolAbsent, run

VERSION = "3.3.30"
SECONDS_MAX = 300.0
_VENV = TOOLS_DIR / f"checkov-{VERSION}-venv"
_STAMP = _VENV / ".installed"


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """A finding about a resource."""

    check: str  # its id
    resource: str  # the name in its template
    text: str


def findings() -> list[Finding]:
    """Return what it finds; downloads it if it is missing. Raises ``ToolAbsent``."""
    _install()
    templates = [ROOT / "template.yaml", *sorted((ROOT / "infra").glob("*.yaml"))]
    done = subprocess.run(
        [
            # Not by the script itself: its first line has a path that may no longer exist.
            *(_VENV / "bin" / "python", _VENV / "bin" / "checkov", "--framework", "cloudformation"),
            *("--compact", "--quiet", "--skip-download", "--output", "json"),
            *(word for path in templates for word in ("--file", path)),
        ],
        cwd=ROOT,
        env={**os.environ, "LOG_LEVEL": "ERROR"},
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,  # 1: there are findings
    )
    try:
        answer = json.loads(done.stdout)
        failed, summary = answer["results"]["failed_checks"], answer["summary"]
    except (ValueError, KeyError, TypeError) as error:
        raise RuntimeError(f"checkov failed: {done.stdout}{done.stderr}") from error
    if summary["parsing_errors"]:
        raise RuntimeError(f"checkov cannot read {summary['parsing_errors']} templates")
    return sorted(
        Finding(one["check_id"], one["resource"].rpartition(".")[2], one["check_name"])
        for one in failed
    )


def _install() -> None:
    if _STAMP.exists():
        return
    run([sys.executable, "-m", "venv", "--clear", _VENV])
    pip: list[str | Path] = [_VENV / "bin" / "python", "-m", "pip", "install", "--quiet"]
    run([*pip, "--disable-pip-version-check", f"checkov=={VERSION}"])
    _STAMP.touch()


if __name__ == "__main__":
    try:
        for found in findings():
            print(found.check, found.resource, found.text)
    except ToolAbsent as error:
        sys.exit(str(error))
