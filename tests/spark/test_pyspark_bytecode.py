"""Bytecode in Spark's zip of pyspark: what Python imports from it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from zipfile import ZipFile

import pyspark
import pytest
from tidelog_spark.pyspark_bytecode import add_bytecode, home_of_spark

SOURCES = {
    "package/__init__.py": "from package.inner.leaf import VALUE\n",
    "package/inner/__init__.py": "",
    "package/inner/leaf.py": "VALUE = 7\n",
    "package/data.txt": "not a module",
}


@pytest.fixture
def zipped(tmp_path: Path) -> Path:
    path = tmp_path / "pyspark.zip"
    with ZipFile(path, "w") as archive:
        for name, text in SOURCES.items():
            archive.writestr(name, text)
    return path


def compiled_sources(path: Path, code: str) -> tuple[list[str], list[str]]:
    """Run code with the zip in the path; return its output, and the sources that it compiled."""
    script = (
        "import sys, zipimport; compiled = []\n"
        "real = zipimport._compile_source\n"
        "def count(path, source): compiled.append(path); return real(path, source)\n"
        "zipimport._compile_source = count\n"
        f"sys.path.insert(0, {str(path)!r})\n"
        f"print({code})\nprint(*compiled, sep='\\n')\n"
    )
    found = subprocess.run(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, check=True, text=True
    )
    first, *others = found.stdout.splitlines()
    return [first], [one for one in others if one]


def test_python_compiles_no_module_of_a_zip_with_bytecode(zipped: Path) -> None:
    code = "__import__('package').VALUE"
    assert len(set(compiled_sources(zipped, code)[1])) == 3
    assert add_bytecode(zipped) == 3
    assert compiled_sources(zipped, code) == (["7"], [])


def test_bytecode_is_added_again_without_harm(zipped: Path) -> None:
    add_bytecode(zipped)
    names = ZipFile(zipped).namelist()
    assert add_bytecode(zipped) == 3
    assert ZipFile(zipped).namelist() == names
    assert [path.name for path in zipped.parent.iterdir()] == ["pyspark.zip"]


def test_other_files_of_the_zip_stay(zipped: Path) -> None:
    zipped.chmod(0o640)
    add_bytecode(zipped)
    with ZipFile(zipped) as archive:
        assert {name: archive.read(name).decode() for name in SOURCES} == SOURCES
    assert zipped.stat().st_mode & 0o777 == 0o640


def test_a_zip_that_cannot_be_read_is_left_as_it_is(tmp_path: Path) -> None:
    path = tmp_path / "pyspark.zip"
    path.write_bytes(b"no zip")
    with pytest.raises(Exception, match="not a zip"):
        add_bytecode(path)
    assert path.read_bytes() == b"no zip"
    assert [path.name for path in tmp_path.iterdir()] == ["pyspark.zip"]


def test_the_home_is_the_one_given_or_the_installed_pyspark(monkeypatch) -> None:
    monkeypatch.delenv("SPARK_HOME", raising=False)
    assert home_of_spark() == Path(pyspark.__file__).parent
    monkeypatch.setenv("SPARK_HOME", "/opt/spark")
    assert home_of_spark() == Path("/opt/spark")


def test_workers_of_a_session_compile_no_module_of_pyspark(spark) -> None:
    def cached(_: object) -> tuple[str, str | None]:
        import pyspark.worker

        return pyspark.worker.__file__, pyspark.worker.__loader__.get_filename("pyspark.worker")

    found = set(spark.sparkContext.parallelize(range(2), 2).map(cached).collect())
    assert all(one.endswith("pyspark.zip/pyspark/worker.pyc") for pair in found for one in pair)


def test_a_module_that_python_warns_of_is_compiled_too(zipped: Path) -> None:
    """Also where warnings are errors, as in these tests: pyspark has such a module of its own."""
    with ZipFile(zipped, "a") as archive:
        archive.writestr("package/odd.py", "VALUE = 1 if () is 1 else 2\n")
    assert add_bytecode(zipped) == 4
    assert "package/odd.pyc" in ZipFile(zipped).namelist()


def test_a_module_for_another_python_stays_a_source(zipped: Path) -> None:
    with ZipFile(zipped, "a") as archive:
        archive.writestr("package/later.py", "of a later = grammar\n")
    assert add_bytecode(zipped) == 3
    assert not {"package/later.pyc"} & set(ZipFile(zipped).namelist())
    assert "package/later.py" in ZipFile(zipped).namelist()
