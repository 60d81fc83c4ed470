"""``python -m tidelog_functions.local``: retention and scrub beside the nodes of one machine.

Prints one line on stdout when it has started. It has no state outside of the stores:
killing it at any moment loses nothing, and several at once are harmless. With
``--until-stdin-ends`` it ends with the process that started it.
"""

from __future__ import annotations

import argparse
import os
import select
import sys
import threading
from collections.abc import Sequence

from tidelog_core.config_environment import config_variable
from tidelog_core.errors import InvalidConfig
from tidelog_core.log_format import LOG_FORMATS, TEXT, configure_logging

from tidelog_functions.invocation import parse_function_settings
from tidelog_functions.local.runner import Handlers, LocalRunner
from tidelog_functions.retention import handler as retention
from tidelog_functions.scrub import handler as scrub
from tidelog_functions.scrub.settings import parse_scrub_settings


def main(arguments: Sequence[str]) -> int:
    """Run until stopped; return the exit status: 2 for wrong settings."""
    given = _parser().parse_args(arguments)
    configure_logging("functions", given.log_level, log_format=given.log_format)
    # The handlers read the environment, as in Lambda.
    os.environ["TIDELOG_METADATA"] = given.metadata
    os.environ["TIDELOG_OBJECTS"] = given.objects
    for pair in given.set or ():
        name, _, value = pair.partition("=")
        os.environ[config_variable(name.strip())] = value.strip()
    try:
        settings = parse_function_settings(os.environ)
        parse_scrub_settings(os.environ)
    except InvalidConfig as error:
        for problem in error.problems:
            print(f"tidelog functions: {problem}", file=sys.stderr)  # noqa: T201
        return 2
    runner = LocalRunner(
        Handlers(retention=retention.handle, scrub=scrub.handle),
        objects_url=settings.objects_url,
        retention_interval_s=settings.node_config.log_retention_check_interval_ms / 1000,
        wait=_wait_for_stdin if given.until_stdin_ends else threading.Event().wait,
    )
    print("tidelog functions ready", flush=True)  # noqa: T201
    runner.run()
    return 0


def _wait_for_stdin(timeout_s: float) -> bool:
    """Nothing is written to stdin, so it becomes readable only when the parent ends."""
    return bool(select.select([sys.stdin], [], [], timeout_s)[0])


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tidelog_functions.local", description=__doc__, allow_abbrev=False
    )
    parser.add_argument("--metadata", required=True, metavar="URL", help="metadata store")
    parser.add_argument("--objects", required=True, metavar="URL", help="object store")
    parser.add_argument(
        "--set", action="append", metavar="NAME=VALUE", help="a setting of the nodes; repeatable"
    )
    parser.add_argument("--log-level", default="INFO", help="DEBUG, INFO, WARNING or ERROR")
    parser.add_argument("--log-format", choices=LOG_FORMATS, default=TEXT)
    parser.add_argument("--until-stdin-ends", action="store_true")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
