"""A virtual machine with Debian's kernel, for tests of what this machine's kernel may not have.

    python -m tools.kernel_machine python -m pytest tests/node/security/test_kernel_tls.py

The command runs there as root, in this folder and with this machine's files, which it sees but
cannot change (virtiofs below an overlay in memory). The kernel is emulated: it is some twenty times
slower, and needs no rights. Kernel and busybox come from Debian's packages into .cache; qemu
must be installed.
"""

from __future__ import annotations

import os
import platform
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tools.places import ROOT, ToolAbsent, require, run

KERNEL_PACKAGE = "linux-image-cloud-amd64"  # names the newest one
BUSYBOX_PACKAGE = "busybox-static"
MEMORY = "3G"
BOOT_MODULES = ("virtio_pci", "virtiofs", "overlay")
FOLDER = ROOT / ".cache" / "kernel-machine"
QEMU = "qemu-system-x86_64"
FILE_SERVERS = (Path("/usr/lib/qemu/virtiofsd"), Path("/usr/libexec/virtiofsd"))
EMULATED = "TIDELOG_EMULATED"  # an environment variable of the commands there
PASSED_ON = "TIDELOG_"  # the beginning of environment variables
EXIT_MARK = "kernel-machine: exit status "

_INIT = """#!/bin/busybox sh
/bin/busybox --install -s /bin
export PATH=/bin
mount -t proc proc /proc
for module in {boot_modules}; do insmod /boot/$module || echo "no $module"; done
mkdir -p /host /memory /new /lib/modules
mount -t virtiofs -o ro host /host
mount -t tmpfs -o size=75% memory /memory
mkdir /memory/upper /memory/work
mount -t overlay -o lowerdir=/host,upperdir=/memory/upper,workdir=/memory/work overlay /new
ln -s /host{modules} /lib/modules/{release}
modprobe {modules_wanted}
mount -t proc proc /new/proc
mount -t sysfs sys /new/sys
mount -t devtmpfs dev /new/dev
mount -t tmpfs tmp /new/tmp
mkdir -p /new/dev/shm
mount -t tmpfs shm /new/dev/shm
ifconfig lo 127.0.0.1 up
chroot /new /bin/sh -c {script}
echo "{exit_mark}$?"
poweroff -f
"""


def obstacle() -> str:
    """Return why there can be no such machine here, "" if there can."""
    if platform.machine() != "x86_64":
        return f"the virtual machine is of x86_64, this one is {platform.machine()}"
    if shutil.which(QEMU) is None:
        return f"{QEMU} is not on this machine: install qemu-system-x86"
    if _file_server() is None:
        return "virtiofsd is not on this machine: install qemu-system-common or virtiofsd"
    try:
        install()
    except ToolAbsent as absent:
        return str(absent)
    return ""


def install() -> None:
    """Fetch the kernel and busybox, unless they are there. Raises ``ToolAbsent``."""
    if (FOLDER / "lib").exists() and (_modules() / "modules.dep").exists():
        return
    FOLDER.mkdir(parents=True, exist_ok=True)
    require("dpkg")
    try:
        _download()
    except ToolAbsent:
        run([require("apt-get"), "update"])  # the package lists may be missing or old
        _download()
    for package in FOLDER.glob("*.deb"):
        run(["dpkg", "-x", package, FOLDER])
    run([_busybox(), "depmod", "-b", FOLDER, _release()])


def run_there(
    command: Sequence[str], *, environment: Mapping[str, str], modules: Sequence[str] = ("tls",)
) -> int:
    """Run the command in the machine, with its output on this one's; return its exit status.

    ``modules`` of the kernel are loaded before. Raises ``ToolAbsent`` if the machine ends
    without a status.
    """
    server = _file_server()
    assert server is not None, "``obstacle`` has told"
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        initial = _initial_files(folder, command, environment, modules)
        address = folder / "files.sock"
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(address))
            listener.listen()
            serving = subprocess.Popen(
                [
                    *(server, f"--fd={listener.fileno()}", "-o", "source=/"),
                    *("-o", "sandbox=chroot", "-o", "cache=always"),
                ],
                pass_fds=[listener.fileno()],
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        try:
            return _boot(initial, address)
        finally:
            serving.terminate()
            serving.wait()


def _boot(initial: Path, files: Path) -> int:
    status: int | None = None
    machine = subprocess.Popen(
        [
            *("nice", QEMU, "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "2"),
            *("-m", MEMORY, "-machine", "pc,memory-backend=memory", "-nodefaults", "-no-reboot"),
            *("-object", f"memory-backend-memfd,id=memory,size={MEMORY},share=on"),
            *("-chardev", f"socket,id=files,path={files}"),
            *("-device", "vhost-user-fs-pci,queue-size=1024,chardev=files,tag=host"),
            *("-display", "none", "-serial", "stdio"),
            *("-kernel", _kernel(), "-initrd", initial),
            *("-append", "console=ttyS0 quiet panic=-1"),
        ],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    assert machine.stdout is not None
    try:
        for line in machine.stdout:
            if line.startswith(EXIT_MARK):
                status = int(line.removeprefix(EXIT_MARK))
            else:
                print(line.rstrip(), flush=True)
    finally:
        machine.kill()
        machine.wait()
    if status is None:
        raise ToolAbsent("the virtual machine ended without a status")
    return status


def _initial_files(
    folder: Path, command: Sequence[str], environment: Mapping[str, str], modules: Sequence[str]
) -> Path:
    """Write the files that the kernel begins with; return their archive."""
    root = folder / "initial"
    for name in ("bin", "boot", "dev", "proc", "sbin", "sys"):
        (root / name).mkdir(parents=True)
    shutil.copy(_busybox(), root / "bin" / "busybox")
    (root / "sbin" / "modprobe").symlink_to("/bin/busybox")  # The kernel itself calls it.
    boot_modules = _with_dependencies(BOOT_MODULES)
    for module in boot_modules:
        shutil.copy(module, root / "boot")
    words = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    script = f"cd {shlex.quote(str(ROOT))} && exec env {words} {shlex.join(command)} </dev/null"
    init = root / "init"
    init.write_text(
        _INIT.format(
            boot_modules=" ".join(module.name for module in boot_modules),
            modules=_modules(),
            modules_wanted=f"-a {' '.join(modules)}",
            release=_release(),
            script=shlex.quote(script),
            exit_mark=EXIT_MARK,
        )
    )
    init.chmod(0o755)
    archive = folder / "initial.cpio"
    names = "\n".join(str(path.relative_to(root)) for path in sorted(root.rglob("*")))
    with archive.open("wb") as file:
        subprocess.run(
            [_busybox(), "cpio", "-o", "-H", "newc"],
            cwd=root,
            input=names.encode(),
            stdout=file,
            stderr=subprocess.DEVNULL,
            check=True,
        )
    return archive


def _with_dependencies(names: Sequence[str]) -> list[Path]:
    """Return the files of the modules, each behind those that it needs."""
    needs: dict[str, list[str]] = {}
    for line in (_modules() / "modules.dep").read_text().splitlines():
        path, _, dependencies = line.partition(":")
        needs[Path(path).stem] = [path, *dependencies.split()]
    paths: dict[Path, None] = {}
    for name in names:
        for path in reversed(needs[name]):  # The file has the nearest first.
            paths[_modules() / path] = None
    return list(paths)


def _download() -> None:
    apt_get, apt_cache = require("apt-get"), require("apt-cache")
    shown = subprocess.run(
        [apt_cache, "depends", KERNEL_PACKAGE], capture_output=True, text=True, check=False
    )
    kernels = [line.split()[-1] for line in shown.stdout.splitlines() if "Depends: linux-" in line]
    if not kernels:
        raise ToolAbsent(f"{KERNEL_PACKAGE} is not among the packages that apt knows")
    run([apt_get, "download", kernels[0], BUSYBOX_PACKAGE], cwd=FOLDER)


def _file_server() -> Path | None:
    return next((path for path in FILE_SERVERS if path.exists()), None)


def _busybox() -> Path:
    return FOLDER / "bin" / "busybox"


def _kernel() -> Path:
    [path] = (FOLDER / "boot").glob("vmlinuz-*")
    return path


def _release() -> str:
    return _kernel().name.removeprefix("vmlinuz-")


def _modules() -> Path:
    return FOLDER / "lib" / "modules" / _release()


def main() -> int:
    """Run the arguments as a command there; return its exit status, 0 if this machine lacks one."""
    if reason := obstacle():
        print(f"skipped: {reason}")
        return 0
    environment = {
        **{name: value for name, value in os.environ.items() if name.startswith(PASSED_ON)},
        EMULATED: "1",
        "HOME": "/tmp",
        "PATH": os.environ["PATH"],
        "PYTHONPATH": os.environ.get("PYTHONPATH", ""),
        "TERM": "dumb",
    }
    try:
        return run_there(sys.argv[1:], environment=environment)
    except ToolAbsent as absent:
        print(absent)
        return 1


if __name__ == "__main__":
    sys.exit(main())
