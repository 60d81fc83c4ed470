"""Failures of commands: one line on stderr, and an exit status.

The line is the error's message, followed by the error's hint if it has one.

0    success
1    the command failed, or a check found problems
2    the command line is wrong: nothing was attempted
3    only ``verify``: no problems, but leftovers that the scrub removes
130  interrupted
"""

from __future__ import annotations

import logging
import os
import sys
from typing import Any, NoReturn

import typer
from typer.core import TyperGroup

from tidelog_cli.help_names import named

EXIT_STATUS = "Exit status: 0 done, 1 failed, 2 wrong command line, 130 interrupted."
FAILED = 1
WRONG_USAGE = 2
LEFT_OVER = 3

BEFORE_COMMAND = frozenset({"--context", "--command-config"})
BEHIND_COMMAND = frozenset({"--bootstrap", "-b"})

# All errors of the parser: their base class is not public under one name in
# every version of typer.
_COMMAND_LINE_ERRORS: type[Exception] = typer.BadParameter.__mro__[2]


class UsageError(Exception):
    """Options contradict each other, or a value is not allowed."""


class CommandFailed(Exception):
    """The command failed; the message has the reason and the next step."""


class CommandGroup(TyperGroup):
    """A group of commands that report failures in one line."""

    def main(self, *args: Any, **options: Any) -> NoReturn:
        """Run the command and exit with its status."""
        # The command's one line reports the failures that the SDK would log.
        logging.getLogger("tidelog").addHandler(logging.NullHandler())
        options.setdefault("prog_name", "tidelog")
        options["standalone_mode"] = False  # The parser raises its errors instead of printing them.
        try:
            status = super().main(*args, **options)
            # Python's own flush at the end fails with a status and words of its own.
            sys.stdout.flush()
        except typer.Abort:
            _fail("aborted", FAILED)
        except _COMMAND_LINE_ERRORS as error:
            _fail(_describe_usage(error), WRONG_USAGE)
        except UsageError as error:
            _fail(str(error), WRONG_USAGE)
        except CommandFailed as error:
            _fail(_with_hint(str(error), error.__cause__), FAILED)
        except BrokenPipeError:
            _fail_in_silence()  # ``head`` has seen enough.
        except OSError as error:
            _drop_output()
            _fail(_describe_os_error(error), FAILED)
        except Exception as error:
            _fail_with(error)
        sys.exit(status if isinstance(status, int) else 0)

    def get_params(self, ctx: typer.Context) -> list[Any]:  # type: ignore[override]
        """Return the options of the group itself."""
        return named(super().get_params(ctx))

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Show the help if no command is given."""
        if not args and not ctx.resilient_parsing:
            text = ctx.get_help()
            if text:  # Otherwise it has been printed.
                print(text)
            ctx.exit()
        return super().parse_args(ctx, args)


def _fail_with(error: Exception) -> NoReturn:
    """Report Tidelog's own errors; raise any other with its traceback: it is a bug."""
    from tidelog_core.errors import InvalidConfig, TidelogError

    if isinstance(error, InvalidConfig):
        _fail(str(error), WRONG_USAGE)
    if isinstance(error, UnicodeEncodeError) and error.reason == "surrogates not allowed":
        # Python keeps an argument's bytes that are not UTF-8 as halves of surrogate pairs.
        _fail(f"an argument is not UTF-8: {ascii(error.object)[:200]}", WRONG_USAGE)
    if isinstance(error, TidelogError):
        _fail(_with_hint(str(error) or error.code.name.replace("_", " "), error), FAILED)
    raise error


def _with_hint(message: str, error: BaseException | None) -> str:
    hint = getattr(error, "hint", "")  # TidelogError is not imported for the command line's own
    return f"{message.rstrip('.')}; {hint}" if hint else message


def _describe_usage(error: Exception) -> str:
    message = " ".join(str(getattr(error, "format_message", error.__str__)()).split())
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "tidelog"
    if context is not None:
        option = getattr(error, "option_name", "")
        is_group = hasattr(context.command, "commands")
        if option in BEFORE_COMMAND and not (is_group and context.parent is None):
            return f"{option} comes before the command: tidelog {option} … COMMAND"
        if option in BEHIND_COMMAND and is_group:
            return f"{option} comes behind the command: {path} COMMAND {option} …"
    end = " " if message.endswith("?") else "; "
    return f"{message[:1].lower()}{message[1:].rstrip('.')}{end}see '{path} --help'"


def _describe_os_error(error: OSError) -> str:
    if error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return error.strerror or str(error)


def _fail_in_silence() -> NoReturn:
    _drop_output()
    sys.exit(FAILED)


def _drop_output() -> None:
    """Let what stdout still has go nowhere: Python flushes it at the end, which would fail too."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _fail(message: str, status: int) -> NoReturn:
    print(f"tidelog: {message}", file=sys.stderr)
    sys.exit(status)
