"""The real command, as a subprocess or in this process."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

SECONDS_MAX = 60
COMMAND = str(Path(sys.executable).parent / "tidelog")


@dataclass(frozen=True, slots=True)
class Outcome:
    """How the command ended and what it printed."""

    status: int
    out: bytes
    errors: str

    @property
    def lines(self) -> list[str]:
        """stdout by lines."""
        return self.out.decode().splitlines()

    @property
    def document(self) -> Any:
        """stdout as one JSON document."""
        return json.loads(self.out)


def environment(bootstrap: str | None = None) -> dict[str, str]:
    """Return this process's environment without the command's settings."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TIDELOG_")}
    return kept if bootstrap is None else {**kept, "TIDELOG_BOOTSTRAP": bootstrap}


def environment_without(folder: Path, *modules: str) -> dict[str, str]:
    """Return an environment in which Python does not find these modules; ``folder`` is made."""
    folder.mkdir(parents=True)
    hidden = dict.fromkeys(modules)
    (folder / "sitecustomize.py").write_text(f"import sys\nsys.modules.update({hidden!r})\n")
    given = environment()
    return {**given, "PYTHONPATH": os.pathsep.join([str(folder), given["PYTHONPATH"]])}


def tidelog(
    *arguments: object,
    bootstrap: str | None = None,
    given: bytes = b"",
    status: int | None = 0,
    environ: dict[str, str] | None = None,
) -> Outcome:
    """Run ``tidelog`` with the arguments; it must end with ``status`` unless that is None."""
    command: Sequence[str] = [COMMAND, *map(str, arguments)]
    process = subprocess.run(
        command,
        input=given,
        capture_output=True,
        timeout=SECONDS_MAX,
        env=environment(bootstrap) if environ is None else environ,
        check=False,
    )
    outcome = Outcome(process.returncode, process.stdout, process.stderr.decode())
    assert "Traceback" not in outcome.errors, outcome.errors
    assert status is None or outcome.status == status, outcome
    return outcome


def called(
    *arguments: object, bootstrap: str | None = None, given: bytes = b"", status: int | None = 0
) -> Outcome:
    """Run the same command inside of this process, which is quicker. stdin and stdout are files."""
    from tidelog_cli.commands import app

    errors = io.StringIO()
    texts = [*map(str, arguments), *(("--bootstrap", bootstrap) if bootstrap else ())]
    with (
        tempfile.TemporaryFile("w+") as source,
        tempfile.TemporaryFile("w+") as out,
        pytest.MonkeyPatch.context() as patch,
    ):
        source.buffer.write(given)
        source.seek(0)
        patch.setattr(sys, "stdin", source)
        # ``tidelog up`` logs on stderr, which is closed after this call. Tests of other programs
        # may have left such a handler too.
        kept = [one for one in logging.root.handlers if type(one) is not logging.StreamHandler]
        patch.setattr(logging.root, "handlers", kept)
        patch.setattr(logging.root, "level", logging.root.level)
        with redirect_stdout(out), redirect_stderr(errors), pytest.raises(SystemExit) as ended:
            app(texts)
        out.flush()
        out.seek(0)
        printed = out.buffer.read()
    assert isinstance(ended.value.code, int)
    outcome = Outcome(ended.value.code, printed, errors.getvalue())
    assert status is None or outcome.status == status, outcome
    return outcome
