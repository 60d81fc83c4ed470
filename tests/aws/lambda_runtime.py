"""A built function under Lambda's own runtime client, invoked over HTTP.

    with BuiltFunction(build_dir, "RetentionFunction", "a.b.handle", environment) as function:
        answer = function.invoke({"source": "aws.s3", ...})

The process sees what it would see on Lambda: the function's folder, its layer and the
runtime client, and none of the packages that the tests have.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

from tools import lambda_python, sam
from tools.ports import free_port

START_SECONDS_MAX = 30.0
INVOKE_SECONDS_MAX = 60.0
PATH = "2015-03-31/functions/function/invocations"  # the emulator knows one function only


class BuiltFunction:
    """One function's process behind the runtime interface emulator."""

    def __init__(
        self,
        build_dir: Path,
        name: str,
        handler: str,
        environment: Mapping[str, str],
        *,
        log: Path | None = None,
    ) -> None:
        """``log`` is a file for what the function and the emulator write."""
        self._function = build_dir / name
        self._packages = [self._function, build_dir / "CoreLayer" / "python", sam.runtime_client()]
        self._handler = handler
        self._environment = environment
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._port = free_port()

    def invoke(self, event: object) -> Any:
        """Return what the handler returned, or its error as Lambda gives it."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self._port}/{PATH}",
            data=json.dumps(event).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=INVOKE_SECONDS_MAX) as answer:
            return json.loads(answer.read())

    def __enter__(self) -> BuiltFunction:
        # Without site-packages: a package that the layer lacks must be missed.
        python = str(lambda_python.closest().program)
        client = [python, "-S", "-m", "awslambdaric", self._handler]
        with contextlib.ExitStack() as stack:
            output = None if self._log is None else stack.enter_context(self._log.open("wb"))
            self._process = self._started(client, output)
        try:
            self._await_listening()
        except BaseException:
            self._end()
            raise
        return self

    def _started(self, client: list[str], output: IO[bytes] | None) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            [
                str(sam.runtime_emulator()),
                *("--runtime-interface-emulator-address", f"127.0.0.1:{self._port}"),
                *("--runtime-api-address", f"127.0.0.1:{free_port()}"),
                *client,
            ],
            cwd=self._function,
            env={
                "PATH": os.environ.get("PATH", os.defpath),
                "PYTHONPATH": os.pathsep.join(map(str, self._packages)),
                "AWS_LAMBDA_FUNCTION_NAME": "function",
                "AWS_LAMBDA_FUNCTION_TIMEOUT": "60",
                "LAMBDA_TASK_ROOT": str(self._function),
                **self._environment,
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._end()

    def _await_listening(self) -> None:
        deadline = time.monotonic() + START_SECONDS_MAX
        while time.monotonic() < deadline:
            assert self._process is not None
            assert self._process.poll() is None, "the emulator ended"
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self._port}/", timeout=5).close()
            except urllib.error.HTTPError as error:
                error.close()  # It answers; what, does not matter.
                return
            except OSError:
                time.sleep(0.05)
            else:
                return
        raise TimeoutError("the emulator does not listen")

    def _end(self) -> None:
        process, self._process = self._process, None
        assert process is not None
        os.killpg(process.pid, 9)  # the emulator leaves its runtime behind otherwise
        process.wait()
