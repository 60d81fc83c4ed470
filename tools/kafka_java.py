"""Apache Kafka's Java client from Maven Central."""

from __future__ import annotations

from tools.places import TOOLS_DIR, require, run

VERSION = "4.1.0"
_ROOT = TOOLS_DIR / "kafka-java"
_POM = f"""<project xmlns="http://maven.apache.org/POM/4.0.0">
  <modelVersion>4.0.0</modelVersion>
  <groupId>tidelog</groupId><artifactId>clients-under-test</artifactId><version>1</version>
  <dependencies>
    <dependency>
      <groupId>org.apache.kafka</groupId><artifactId>kafka-clients</artifactId>
      <version>{VERSION}</version>
    </dependency>
    <dependency>
      <groupId>org.slf4j</groupId><artifactId>slf4j-nop</artifactId><version>1.7.36</version>
    </dependency>
  </dependencies>
</project>
"""


def install() -> None:
    """Make ``class_path`` work."""
    if class_path() is not None:
        return
    _ROOT.mkdir(parents=True, exist_ok=True)
    pom = _ROOT / "pom.xml"
    pom.write_text(_POM)
    goal = "dependency:copy-dependencies"
    run([require("mvn"), "-q", "-B", "-f", pom, goal, f"-DoutputDirectory={_ROOT / 'jars'}"])


def class_path() -> str | None:
    """Return what to give java as ``-cp``, or ``None`` where the jars are absent."""
    jars = _ROOT / "jars"
    if not (jars / f"kafka-clients-{VERSION}.jar").exists():
        return None
    return f"{jars}/*"
