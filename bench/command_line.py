"""The command line of a benchmark: its help is the description of its module."""

from __future__ import annotations

import argparse


def parser_of(name: str, description: str | None) -> argparse.ArgumentParser:
    """Return a parser for ``python -m bench.NAME``, without arguments yet."""
    return argparse.ArgumentParser(
        prog=f"python -m bench.{name}",
        description=description,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
