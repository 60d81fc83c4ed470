"""AWS SAM's command line, and Lambda's own runtime client for Python.

Each has an environment of its own. ``sam`` pins other versions of the project's dependencies. A
function must find only the packages of its layer and of the runtime, on Lambda's Python. The
wheel of ``aws-sam-cli`` contains the emulator of Lambda's runtime interface
(``aws-lambda-rie``).

``python -m tools.sam`` validates and lints every template, and builds functions and layer. It
needs neither Docker nor an AWS account, and downloads only packages from PyPI.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools import lambda_python
from tools.lambda_python import Python
from tools.places import ROOT, TOOLS_DIR, ToolAbsent, run

SAM_VERSION = "1.170.0"
RUNTIME_CLIENT_VERSION = "4.2.2"
TEMPLATE = ROOT / "template.yaml"
INFRA = ROOT / "infra"
WORK_DIR = ROOT / ".cache" / "sam"
BUILD_DIR = WORK_DIR / "build"
SECONDS_MAX = 900.0  # of one command
REGION = "us-east-1"  # validation and build need one, any will do
PYTHON_VERSION = "3.12"  # of the functions, as in template.yaml

_VENV = TOOLS_DIR / "sam-venv"
_STAMP = _VENV / f".installed-{SAM_VERSION}"


def install() -> None:
    """Make ``sam``, ``runtime_emulator`` and ``runtime_client`` work."""
    if not _STAMP.exists():
        _install_sam()
    python = lambda_python.closest()
    client = _client_folder(python)
    if client.exists():
        return
    scratch = client.with_name(f"{client.name}.part")
    shutil.rmtree(scratch, ignore_errors=True)
    package = f"awslambdaric=={RUNTIME_CLIENT_VERSION}"
    uv: list[str | Path] = [_VENV / "bin" / "uv", "pip", "install", "--quiet"]
    run([*uv, "--python", python.program, "--target", scratch, package])
    scratch.rename(client)


def _install_sam() -> None:
    run([sys.executable, "-m", "venv", "--clear", _VENV])
    program = _VENV / "bin"
    run([program / "pip", "install", "--quiet", "--disable-pip-version-check", "uv"])
    uv: list[str | Path] = [program / "uv", "pip", "install", "--quiet"]
    run([*uv, "--python", program / "python", f"aws-sam-cli=={SAM_VERSION}"])
    _STAMP.touch()


def _client_folder(python: Python) -> Path:
    return TOOLS_DIR / f"awslambdaric-{RUNTIME_CLIENT_VERSION}-python{python.minor}"


def sam(*arguments: str | Path, environment: Mapping[str, str] | None = None) -> str:
    """Run ``sam`` in the project's folder and return its output.

    Raises ``ToolAbsent`` if it is not installed, ``SamFailed`` if it fails.
    """
    return _run(["sam", *map(str, arguments)], environment or {})


def validate() -> None:
    """Raise ``SamFailed`` with the errors that SAM's schema and cfn-lint find in the templates.

    ``sam validate`` checks only the root, so cfn-lint checks the nested stacks separately.
    """
    sam("validate", "--lint", "--template-file", TEMPLATE, "--region", REGION)
    nested = [str(path) for path in sorted(INFRA.glob("*.yaml"))]
    # They reach CloudFormation through `sam package` only, which resolves aliases and paths.
    resolved = ("W1101", "W3002")
    _run(["cfn-lint", "--regions", REGION, "--ignore-checks", *resolved, "--", *nested])


def build(build_dir: Path = BUILD_DIR, *, python_version: str = PYTHON_VERSION) -> Path:
    """Build functions and layer; return the built template, with nested stacks beside it.

    They are built in place, because they include packages of other folders.
    """
    sam(
        *("build", "--template-file", TEMPLATE, "--build-dir", build_dir),
        *("--build-in-source", "--region", REGION),
        *("--parameter-overrides", f"PythonVersion={python_version}"),
        environment={"PYTHON": sys.executable, "PYTHON_VERSION": python_version},
    )
    return build_dir / "template.yaml"


def resource_schemas() -> Path:
    """Return the folder of CloudFormation's schemas of resource types, which cfn-lint has."""
    _require_installed()
    (found,) = _VENV.glob("lib/python*/site-packages/cfnlint/data/schemas")
    return found


def runtime_emulator() -> Path:
    """Return the program that serves events to a runtime client over HTTP."""
    _require_installed()
    machine = {"aarch64": "arm64"}.get(platform.machine(), platform.machine())
    found = sorted(_VENV.glob(f"lib/python*/site-packages/samcli/local/rapid/*-rie-{machine}"))
    if not found:
        raise ToolAbsent(f"the runtime interface emulator is not there for {machine}")
    return found[0]


def runtime_client() -> Path:
    """Return the folder of the package ``awslambdaric`` and its dependencies.

    They are for ``lambda_python.closest``.
    """
    client = _client_folder(lambda_python.closest())
    if not client.exists():
        raise ToolAbsent("awslambdaric is not installed: run `make tools`")
    return client


class SamFailed(Exception):
    """A command of ``sam`` failed; the message has its output."""


_ENVIRONMENT = {
    "SAM_CLI_TELEMETRY": "0",
    "__SAM_CLI_APP_DIR": str(WORK_DIR / "app"),  # by default in the home directory
}


def _run(command: Sequence[str], environment: Mapping[str, str] = _ENVIRONMENT) -> str:
    _require_installed()
    done = subprocess.run(
        # Not by the script itself: its first line has a path that may no longer exist.
        [_VENV / "bin" / "python", _VENV / "bin" / command[0], *command[1:]],
        cwd=ROOT,
        env={**os.environ, **_ENVIRONMENT, **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    said = done.stdout + done.stderr
    if done.returncode != 0:
        raise SamFailed(f"{' '.join(command)} failed with exit code {done.returncode}:\n{said}")
    return said


def _require_installed() -> None:
    if not _STAMP.exists():
        raise ToolAbsent("aws-sam-cli is not installed: run `make tools`")


def main() -> None:
    """Validate the templates and build what they deploy."""
    validate()
    print("the templates are valid", flush=True)
    print(f"built: {build().relative_to(ROOT)}")


if __name__ == "__main__":
    try:
        main()
    except (SamFailed, ToolAbsent) as error:
        sys.exit(str(error))
