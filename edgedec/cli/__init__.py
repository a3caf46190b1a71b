"""The command line. Results go to stdout, everything else to stderr.

Exit codes: 0 done, 1 the request failed, 2 wrong usage, 130 interrupted. An error is two lines: what was wrong, and
what to do.
"""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import click

from edgedec import __version__
from edgedec.errors import EdgedecError

_COMMANDS = {
    "bench": "edgedec.cli.bench:bench",
    "corpus": "edgedec.cli.corpus:corpus",
    "doctor": "edgedec.cli.doctor:doctor",
    "run": "edgedec.cli.run:run",
}


class _LazyGroup(click.Group):
    """Commands are imported when they are called, so that ``--help`` needs no native library."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _COMMANDS:
            return None
        from importlib import import_module

        module, _, name = _COMMANDS[cmd_name].partition(":")
        command: click.Command = getattr(import_module(module), name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from edgedec.errors import UnknownNameError

        name = args[0] if args else ""
        if name and not name.startswith("-") and name not in _COMMANDS:
            raise UnknownNameError("command", name, _COMMANDS)
        return super().resolve_command(ctx, args)


@click.group(
    cls=_LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(__version__, "-V", "--version", prog_name="edgedec")
@click.pass_context
def cli(context: click.Context) -> None:
    """Local GGUF models, faster on the machine you own.

    edgedec drives llama.cpp, guesses several tokens ahead, lets the model check all guesses in one pass, and stops
    guessing whenever that does not pay on this machine. The answer is the model's own.
    """
    if context.invoked_subcommand is None:
        click.echo(context.get_help())


def set_verbosity(verbose: int) -> None:
    """0: warnings of edgedec; 1 (-v): also llama.cpp's log; 2 (-vv): everything. Always on stderr."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(name)s: %(message)s"))
    logger = logging.getLogger("edgedec")
    logger.handlers[:] = [handler]
    logger.propagate = False
    logger.setLevel((logging.WARNING, logging.INFO, logging.DEBUG)[min(verbose, 2)])
    # llama.cpp calls many harmless things errors; what matters of them arrives as an exception.
    logging.getLogger("edgedec.llama.cpp").setLevel(logging.CRITICAL if verbose == 0 else logging.NOTSET)


def print_json(value: Any) -> None:
    """One line on stdout; characters that its encoding lacks are escaped."""
    text = json.dumps(value, ensure_ascii=False)
    is_utf8 = (sys.stdout.encoding or "").lower().replace("-", "") == "utf8"
    is_text = text == text.encode("utf-8", "replace").decode()  # no name of a file that is none
    click.echo(text if is_utf8 and is_text else json.dumps(value))


def report(message: str, hint: str) -> None:
    """The two lines of an error, on stderr."""
    click.echo(f"edgedec: {message}", err=True)
    if hint:
        click.echo(f"  {hint}", err=True)


def fail(message: str, hint: str, code: int) -> NoReturn:
    """End with the two lines of an error."""
    report(message, hint)
    sys.exit(code)


def explain_fatal_errors() -> None:
    """A damaged file can make llama.cpp end the process: let it end with the two lines of an error."""
    from edgedec.llama import lib

    def explain(message: str) -> None:
        report(f"llama.cpp stopped: {message}", "If the model file may be damaged, fetch it again; else report this.")
        os._exit(1)

    lib.on_fatal(explain)


def _discard_stdout() -> None:
    """Keep the interpreter from flushing at exit what cannot be written."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main(args: Sequence[str] | None = None) -> NoReturn:
    """Entry point of the ``edgedec`` command."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # closed by whoever started us
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
    try:
        cli.main(args=list(sys.argv[1:] if args is None else args), prog_name="edgedec", standalone_mode=False)
    except EdgedecError as error:
        fail(str(error), error.hint, error.exit_code)
    except click.UsageError as error:
        command = error.ctx.command_path if error.ctx is not None else "edgedec"
        fail(" ".join(error.format_message().split()), f"See '{command} --help'.", 2)
    except click.ClickException as error:
        fail(error.format_message(), "", error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        sys.exit(130)
    except OSError as error:  # but not a reader that has gone: click ends with 1 then, and says nothing
        _discard_stdout()
        where = f": {error.filename}" if error.filename else ""
        fail(f"{error.strerror or error}{where}.", "Check the disk, and what is read from or written to.", 1)
    sys.exit(0)
