"""Downloads jars and their dependencies from Maven Central."""

from __future__ import annotations

from pathlib import Path

from tools.places import require, run

_POM = """<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog</groupId><artifactId>tools</artifactId><version>1</version>
  <dependencies>{dependencies}</dependencies>
</project>
"""
_ALL_EXCLUDED = (
    "<exclusions><exclusion><groupId>*</groupId><artifactId>*</artifactId></exclusion></exclusions>"
)
_COORDINATES = ("groupId", "artifactId", "version", "classifier")


def fetch_jars(folder: Path, *coordinates: str, is_alone: bool = False) -> None:
    """Download artifacts, and unless ``is_alone`` their dependencies, into ``folder/jars``.

    Coordinates are ``group:artifact:version``, optionally with ``:classifier`` at the end.
    Raises ``ToolAbsent``.
    """
    folder.mkdir(parents=True, exist_ok=True)
    pom = folder / "pom.xml"
    dependencies = "".join(_dependency(one, is_alone=is_alone) for one in coordinates)
    pom.write_text(_POM.format(dependencies=dependencies))
    goal = "dependency:copy-dependencies"
    run([require("mvn"), "-q", "-B", "-f", pom, goal, f"-DoutputDirectory={folder / 'jars'}"])


def class_path(folder: Path, *needed: str) -> str | None:
    """Return the value of java's ``-cp``, or ``None`` if one of the jars is missing."""
    jars = folder / "jars"
    return f"{jars}/*" if all((jars / name).exists() for name in needed) else None


def _dependency(coordinates: str, *, is_alone: bool) -> str:
    parts = zip(_COORDINATES, coordinates.split(":"), strict=False)
    inside = "".join(f"<{name}>{value}</{name}>" for name, value in parts)
    if is_alone:
        inside += _ALL_EXCLUDED
    return f"<dependency>{inside}</dependency>"
