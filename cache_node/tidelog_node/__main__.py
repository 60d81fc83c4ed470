"""``python -m tidelog_node``: one node process. ``process`` says what it prints and returns."""

from __future__ import annotations

import gc
import sys

from tidelog_node.processes import lazy_modules
from tidelog_node.processes.early_signals import let_signals_end
from tidelog_node.processes.init_process import leave_first_process


def main() -> int:
    """Run the node that the arguments and the environment describe."""
    leave_first_process()
    let_signals_end()
    gc.disable()  # until the node serves: a start creates thousands of classes and no garbage
    lazy_modules.install()
    # Only now: each counts for what is imported after it.
    from tidelog_node.processes import lazy_methods

    lazy_methods.install()
    from tidelog_node.process import run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
