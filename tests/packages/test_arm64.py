"""A wheel for arm64 by the cross compiler, and the bundle for Graviton of it, in an emulated process."""

from __future__ import annotations

import subprocess
import tarfile
import urllib.error
import urllib.request
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tools import arm64_root, cross_compiling, javacpp_python, kcat, node_bundle, wheels
from tools.javacpp_python import ARM64
from tools.places import ToolAbsent, require
from tools.ports import free_ports
from tools.server_process import running

# Of the emulated machines. The build of 3.12 for arm64 lacks SQLite.
MINOR = "3.14"
PYTHON = f"/opt/python/bin/python{MINOR}"
START_SECONDS_MAX = 600.0  # emulated, and beside other tests
EM_AARCH64 = 183  # the kind of machine in the header of an ELF file

pytestmark = [
    pytest.mark.slow,
    pytest.mark.packages,
    pytest.mark.timeout(3600),
    pytest.mark.skipif(not cross_compiling.is_needed(ARM64), reason="this is an arm64 machine"),
]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A wheel from a build that takes minutes. One that fails is no reason to skip."""
    try:
        cross_compiling.check_compiler()
        require(arm64_root.EMULATOR)
        arm64_root.arm64_root()
        javacpp_python.install(MINOR, ARM64)
        python = javacpp_python.install(MINOR) / "bin" / f"python{MINOR}"
    except ToolAbsent as absent:
        pytest.skip(str(absent))
    folder = tmp_path_factory.mktemp("wheels")
    return wheels.build(wheels.environment_of(str(python)), folder, machine=ARM64)


@pytest.fixture(scope="module")
def packages(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages of the bundle, as a machine unpacks it."""
    folder = tmp_path_factory.mktemp("machine")
    bundle = folder / "bundle.tar.gz"
    compiled = node_bundle.compiled_wheel(wheel)
    node_bundle.write_bundle(bundle, python_version=MINOR, wheel=compiled)
    with tarfile.open(bundle) as archive:
        archive.extractall(folder, filter="data")
    return folder / "packages"


def _emulated(packages: Path, data: Path, *arguments: str) -> list[str]:
    """Return the command of arm64 Python with the bundle's packages."""
    data.mkdir(exist_ok=True)
    folders = {
        "/opt/python": javacpp_python.install(MINOR, ARM64),
        "/opt/packages": packages,
        "/data": data,
    }
    # Bytecode is kept beside the modules: to compile it in emulation takes minutes.
    return arm64_root.command([PYTHON, *arguments], folders, {"PYTHONPATH": "/opt/packages"})


def test_every_module_of_the_wheel_is_for_arm64(wheel: Path) -> None:
    assert "manylinux" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".so")]
        kinds = {int.from_bytes(archive.read(name)[18:20], "little") for name in names}
    assert kinds == {EM_AARCH64}
    assert [name for name in names if name.startswith("tidelog__mypyc.")]


def test_the_modules_are_those_of_the_machine(packages: Path, tmp_path: Path) -> None:
    program = "import platform, tidelog_core.log.local_log as log; print(platform.machine(), log.__file__)"
    command = _emulated(packages, tmp_path / "data", "-S", "-c", program)
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    machine, file = done.stdout.split()
    assert machine == ARM64
    assert file.endswith(f"-{ARM64}-linux-gnu.so")


def test_an_arm64_node_serves_kcat(packages: Path, tmp_path: Path) -> None:
    found = kcat.command()
    if found is None:
        pytest.skip("kcat is not installed: run `make tools`")
    program, environment = found
    sent = "".join(f"key{number}:value {number}\n" for number in range(100))
    port = free_ports(3)
    with _node(packages, tmp_path, port):
        produce = [str(program), "-P", "-b", f"127.0.0.1:{port}", "-t", "flights", "-K:"]
        subprocess.run(produce, input=sent.encode(), env=environment, check=True, timeout=120)
        assert _consumed(program, environment, port) == sent
    with _node(packages, tmp_path, port):  # again, from its disk
        assert _consumed(program, environment, port) == sent


def _consumed(program: Path, environment: Mapping[str, str], port: int) -> str:
    consume = [str(program), "-C", "-b", f"127.0.0.1:{port}", "-t", "flights", "-K:", "-e", "-q"]
    done = subprocess.run(
        consume, env=environment, check=False, timeout=120, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@contextmanager
def _node(packages: Path, tmp_path: Path, port: int) -> Iterator[None]:
    """Run a node until the end of the block, from when it is ready."""
    arguments = ["-m", "tidelog_node", "--broker-id=0", "--data-dir=/data", f"--port={port}"]
    arguments += [f"--inter-broker-port={port + 1}", f"--http-port={port + 2}"]
    with running(
        "the emulated node",
        _emulated(packages, tmp_path / "data", *arguments),
        port=port + 2,
        start_seconds_max=START_SECONDS_MAX,
        log_path=tmp_path / "log",
        serves=_is_ready,
    ):
        yield


def _is_ready(http_port: int) -> bool:
    try:
        urllib.request.urlopen(f"http://127.0.0.1:{http_port}/readyz", timeout=30).close()
    except urllib.error.HTTPError as error:
        error.close()
        return False
    except OSError:
        return False
    return True
