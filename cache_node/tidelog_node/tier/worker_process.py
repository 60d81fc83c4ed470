"""``python -m tidelog_node.tier.worker_process``: the process of a tier worker.

``worker`` says what it does. Like a node it executes libraries, and compiles the methods of
dataclasses, when they are first used: its start takes three fifths of the processor's time then,
and a node that leads diskless partitions starts two workers.
"""

from __future__ import annotations

import gc

from tidelog_node.processes import lazy_modules


def main() -> None:
    """Run the worker with the settings of the command line."""
    gc.disable()  # until all is imported: that creates thousands of objects and no garbage
    lazy_modules.install()
    # Only now: each counts for what is imported after it.
    from tidelog_node.processes import lazy_methods

    lazy_methods.install()
    from tidelog_node.tier.worker import run

    gc.freeze()
    gc.enable()
    run()


if __name__ == "__main__":
    main()
