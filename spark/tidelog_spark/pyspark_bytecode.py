"""Adds bytecode to Spark's zip of pyspark: ``python -m tidelog_spark.pyspark_bytecode [HOME]``.

Spark puts ``python/lib/pyspark.zip`` of its home first into the path of its Python processes. The
zip has sources alone, and Python stores no bytecode of modules in a zip. So each process compiles
pyspark again, for half a second of CPU: the first query of a session starts seven of them.

Run it once with the Python that runs the workers, where an image or a machine is set up, and not
while Spark runs: a Python process that has opened the old zip cannot import from the new one.
Without HOME it is ``SPARK_HOME``, or the installed pyspark. Another version of Python ignores the
bytecode.
"""

from __future__ import annotations

import os
import py_compile
import shutil
import sys
import tempfile
import warnings
from importlib.util import find_spec
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile

ZIP = Path("python", "lib", "pyspark.zip")


def add_bytecode(path: Path) -> int:
    """Replace the zip by one with the bytecode of its modules; return their number.

    The file is whole at any time: processes that start meanwhile use the old one or the new one.
    Those that run already may fail at their next import of pyspark.
    """
    count = 0
    with tempfile.TemporaryDirectory(dir=path.parent) as scratch:
        fresh = Path(scratch) / path.name
        with ZipFile(path) as old, ZipFile(fresh, "w", ZIP_DEFLATED) as new:
            for entry in old.infolist():
                if entry.filename.endswith(".pyc"):
                    continue  # It is of this run's module, or of none.
                data = old.read(entry)
                new.writestr(entry, data)
                if entry.filename.endswith(".py"):
                    compiled = _bytecode(data, entry.filename, scratch)
                    if compiled is not None:
                        new.writestr(f"{entry.filename}c", compiled)
                        count += 1
        shutil.copymode(path, fresh)
        fresh.replace(path)
    return count


def home_of_spark() -> Path:
    """Return the home of Spark. Raises ``LookupError`` if there is none."""
    if given := os.environ.get("SPARK_HOME"):
        return Path(given)
    spec = find_spec("pyspark")
    if spec is None or spec.origin is None:
        raise LookupError("SPARK_HOME is not set, and pyspark is not installed")
    return Path(spec.origin).parent


def _bytecode(source: bytes, name: str, scratch: str) -> bytes | None:
    """Return the bytecode of a module; None if it is not for this version of Python."""
    # Unchecked: the modules of a zip change with the zip only.
    mode = py_compile.PycInvalidationMode.UNCHECKED_HASH
    file = Path(scratch) / "module.py"
    file.write_bytes(source)
    target = file.with_suffix(".pyc")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", SyntaxWarning)  # Ours to run, not to mend.
        try:
            py_compile.compile(str(file), str(target), name, doraise=True, invalidation_mode=mode)
        except py_compile.PyCompileError:
            return None
    return target.read_bytes()


def main() -> None:
    """Add the bytecode, and say to what."""
    path = (Path(sys.argv[1]) if len(sys.argv) > 1 else home_of_spark()) / ZIP
    print(f"{path}: bytecode of {add_bytecode(path)} modules")  # noqa: T201


if __name__ == "__main__":
    main()
