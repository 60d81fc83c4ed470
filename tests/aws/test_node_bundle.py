"""The bundle of the machines: compiled, for their Python and their processors."""

from __future__ import annotations

import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from tools import lambda_python, node_bundle, wheels
from tools.node_bundle import ARM64, X86_64, WheelUnfit, compiled_wheel
from tools.places import ToolAbsent

ELF_MACHINE = {X86_64: 62, ARM64: 183}  # e_machine. Source: elf.h
X86_WHEEL = "tidelog-0.1.0-cp312-cp312-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"


def test_a_wheel_tells_python_and_processor_of_its_machines() -> None:
    wheel = compiled_wheel(Path(X86_WHEEL))
    assert (wheel.python_version, wheel.machine) == ("3.12", X86_64)
    arm = compiled_wheel(Path("tidelog-0.1.0-cp313-cp313-manylinux_2_34_aarch64.whl"))
    assert (arm.python_version, arm.machine) == ("3.13", ARM64)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("tidelog-0.1.0-py3-none-any.whl", "is not compiled"),
        ("tidelog-0.1.0-cp312-cp312-linux_x86_64.whl", "another C library"),
        ("tidelog-0.1.0-cp312-cp312-manylinux_2_35_x86_64.whl", "another C library"),
        ("tidelog-0.1.0-cp312-cp312-musllinux_1_2_x86_64.whl", "another C library"),
    ],
)
def test_a_wheel_that_does_not_run_there_is_refused(name: str, problem: str) -> None:
    with pytest.raises(WheelUnfit, match=problem):
        compiled_wheel(Path(name))


def test_a_wheel_for_another_python_is_refused(tmp_path: Path) -> None:
    with pytest.raises(WheelUnfit, match=r"Python 3\.13 of the machines"):
        node_bundle.write_bundle(
            tmp_path / "bundle", python_version="3.13", wheel=compiled_wheel(Path(X86_WHEEL))
        )
    assert not (tmp_path / "bundle").exists()


def test_of_a_wheel_the_node_and_what_it_imports_are_taken(tmp_path: Path) -> None:
    wheel = tmp_path / X86_WHEEL
    names = (
        "tidelog_core/log/local_log.so",
        "tidelog/__init__.py",
        "a__mypyc.so",
        "tidelog-0.1.0.dist-info/METADATA",
        "tidelog-0.1.0.dist-info/RECORD",
        "tidelog_cli/x.py",
    )
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, "")
    node_bundle._unpack(wheel, tmp_path / "packages")
    found = [
        str(path.relative_to(tmp_path / "packages"))
        for path in (tmp_path / "packages").rglob("*")
        if path.is_file()
    ]
    assert sorted(found) == sorted(names[:4])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_the_compiled_bundle_runs_on_the_machines_python(tmp_path: Path) -> None:
    python = lambda_python.closest()
    try:
        environment = wheels.environment_of(str(python.program))
        wheel = compiled_wheel(wheels.build(environment, tmp_path))
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    bundle = tmp_path / "bundle.tar.gz"
    node_bundle.write_bundle(bundle, python_version=python.minor, wheel=wheel)
    with tarfile.open(bundle) as packages:
        packages.extractall(tmp_path / "opt", filter="data")
    script = (
        "import tidelog_node.__main__, tidelog_core.log.local_log as log, "
        "tidelog_node.handlers.produce.handler as produce; print(log.__file__, produce.__file__)"
    )
    done = subprocess.run(
        [python.program, "-S", "-c", script],
        env={"PYTHONPATH": str(tmp_path / "opt" / "packages")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert [name.endswith(".so") for name in done.stdout.split()] == [True, True]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_every_package_of_the_bundle_is_there_for_graviton(tmp_path: Path) -> None:
    node_bundle.install_packages(
        tmp_path, node_bundle.REQUIREMENTS, (), python_version="3.12", machine=ARM64
    )
    libraries = list(tmp_path.rglob("*.so*"))
    assert len(libraries) > 10
    for path in libraries:
        header = path.read_bytes()[:20]
        assert header[:4] == b"\x7fELF"
        assert int.from_bytes(header[18:20], "little") == ELF_MACHINE[ARM64], path
