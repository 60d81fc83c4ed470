"""A node that tells which modules it has executed: ``python -m tests.support.module_watch``.

SIGUSR1 has it write their names to the file ``TEST_MODULES``, and which of them its event loop has
executed since the last signal. The node itself has no code for this. It imports nothing before the
node does, so this is apart from ``watched_node``.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from types import CodeType, FrameType

FILE = "TEST_MODULES"


class ModuleWatch:
    """Notes the code of modules as it is executed."""

    def __init__(self, file: str) -> None:
        self._file = file
        self._by_loop: list[str] = []

    def note(self, event: str, arguments: tuple[object, ...]) -> None:
        """Take an event of the interpreter's audit hooks."""
        if event != "exec" or threading.current_thread() is not threading.main_thread():
            return
        code = arguments[0]
        if isinstance(code, CodeType) and code.co_name == "<module>":
            self._by_loop.append(code.co_filename)

    def tell(self, _: int, __: FrameType | None) -> None:
        """Write down what is known so far."""
        names = [
            name
            for name, one in tuple(sys.modules.items())
            if one is not None and "_unexecuted" not in vars(one)
        ]
        by_loop, self._by_loop = self._by_loop, []
        from pathlib import Path  # which the node has imported by now

        unfinished = Path(f"{self._file}.part")
        unfinished.write_text(json.dumps({"modules": names, "by_loop": by_loop}))
        unfinished.rename(self._file)


if __name__ == "__main__":
    # kio imports it if it is installed, which it is not beside a node.
    sys.modules["hypothesis"] = None  # type: ignore[assignment]
    watch = ModuleWatch(os.environ[FILE])
    signal.signal(signal.SIGUSR1, watch.tell)
    sys.addaudithook(watch.note)
    from tidelog_node.__main__ import main

    sys.exit(main())
