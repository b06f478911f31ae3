"""The command line: parse, call one function, choose the exit status. Imports neither torch nor a platform.

Each command lives in a ``cli_*.py`` that imports nothing heavy at module level, and is registered at the end of this
file. A command returns its exit status; errors end it as ``errors.py`` says: one message on stderr.
"""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from typing import Annotated, Any

import typer

from agcli import (
    __version__,
    cli_bench,
    cli_check,
    cli_compile,
    cli_doctor,
    cli_smoke,
    cli_tune,
    cli_verify,
    early,
    stops,
)
from agcli.errors import AgGemmError, EnvironmentFault, UsageError
from agcli.outputs import open_standard_streams, stdout_fault

PROG = "ag-gemm"

# What all wrong options and arguments raise: the class above this one, in whichever copy of Click Typer uses.
_CLI_USAGE_ERROR: Any = typer.BadParameter.__base__

app = typer.Typer(
    name=PROG,
    help="Fused AllGather+GEMM across Ascend NPUs: run it, prove it right on every rank, show how fast it is.",
    epilog="Exit status: 0 all ranks passed, 1 a wrong result, 2 wrong usage, 3 the environment, 130 after Ctrl-C.",
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def main(argv: list[str] | None = None) -> int:
    """Run the command line ``argv`` (default: the process's own) and return the exit status."""
    try:
        status = int(app(args=argv, prog_name=PROG, standalone_mode=False) or 0)
        sys.stdout.flush()
        return status
    except OSError as error:  # of help or version: commands tell their own
        return _stdout_failed(error)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # Typer leaves by itself then, with status 1
            return _stdout_failed(end.__context__)
        raise
    except Exception as error:
        if not isinstance(error, _CLI_USAGE_ERROR):
            raise
        path = error.ctx.command_path if error.ctx else PROG
        text = error.format_message().rstrip(".")
        if error.ctx and text == "Missing command":
            text += f", one of {', '.join(error.ctx.command.commands)}"
        text += _value_of(error.__cause__, text)
        return _fail(f"{text}. Try '{path} --help'.", UsageError.exit_status)


def _value_of(cause: BaseException | None, text: str) -> str:
    """The value that was refused, where ``text`` lacks it; pydantic knows it, by which some versions of Typer judge."""
    details: list[dict[str, Any]] = getattr(cause, "errors", list)()
    value = f"'{details[0].get('input')}'" if details else ""
    return f", got {value}" if value not in text else ""


def run() -> None:
    """Run the process's own command line, and end the process."""
    early.exit_at_once()
    try:
        open_standard_streams()
    except EnvironmentFault as error:
        sys.exit(_fail(str(error), error.exit_status))
    try:
        status = main()
    finally:
        stops.finish()
    sys.exit(status)


def _fail(message: str, status: int) -> int:
    print(f"{PROG}: error: {message}", file=sys.stderr)
    return status


def _stdout_failed(error: OSError) -> int:
    """Say that not all of stdout could be written; what is left of it goes nowhere."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    gone = isinstance(error, BrokenPipeError)
    text = "stdout was closed before the report was complete" if gone else str(stdout_fault(error))
    return _fail(text, EnvironmentFault.exit_status)


def _guarded(command: Callable[..., int]) -> Callable[..., int]:
    """``command`` with every way of ending turned into an exit status and at most one message on stderr."""

    @functools.wraps(command)
    def guarded(*args: object, **kwargs: object) -> int:
        try:
            with stops.handled():
                return _status_of(lambda: command(*args, **kwargs), bool(kwargs.get("debug")))
        except KeyboardInterrupt as stop:
            return stops.tell(stop)

    return guarded


def _status_of(call: Callable[[], int], debug: bool) -> int:
    """The exit status that ``call`` returns, or that of its error, which is told.

    A traceback is added with ``debug``. What nobody foresaw counts as the environment's fault.
    """
    try:
        return call()
    except BrokenPipeError as error:
        return _stdout_failed(error)
    except Exception as error:
        if isinstance(error, (typer.Exit, typer.Abort, _CLI_USAGE_ERROR)):
            raise
        if debug:
            traceback.print_exc()
        if isinstance(error, AgGemmError):
            return _fail(str(error), error.exit_status)
        hint = "" if debug else " (--debug shows where)"
        return _fail(f"{type(error).__name__}: {error}{hint}", EnvironmentFault.exit_status)


def register(command: Callable[..., int], name: str | None = None, group: typer.Typer | None = None) -> None:
    """Add a command to the program, or to a group of commands; ``name`` defaults to the function's."""
    (group or app).command(name or command.__name__)(_guarded(command))


def _show_version(wanted: bool) -> None:
    if wanted:
        print(f"{PROG} {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Options that come before the command."""


register(cli_verify.verify)
register(cli_bench.bench)
register(cli_check.check)
register(cli_compile.compile_, "compile")
register(cli_doctor.doctor)
register(cli_smoke.smoke)
register(cli_tune.tune)

toolchain = typer.Typer(help="The Ascend compilers that compile needs.")
for _command in (cli_compile.install, cli_compile.status, cli_compile.remove):
    register(_command, group=toolchain)
app.add_typer(toolchain, name="toolchain")
