"""The `shardflow` command: runs a subcommand, and turns errors and signals into one line and an exit code.

A subcommand is imported only when it runs, so that those without torch start fast. File names, arguments and output are
UTF-8 in any locale, as in Python 3.15 (PEP 686).
"""

from __future__ import annotations

import contextlib
import importlib
import io
import itertools
import os
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

from .signals import WORDS, ending_at_once

_imports = contextlib.ExitStack()  # until the end of this module
_imports.enter_context(ending_at_once())

import click  # noqa: E402

from shardflow._version import __version__  # noqa: E402
from shardflow.errors import ShardflowError  # noqa: E402

from .terminal import escape_log, say, use_colours  # noqa: E402

COMMANDS = {
    "pack": "Pack images into shards.",
    "extend": "Add new images to a dataset.",
    "info": "Show the contents of a dataset.",
    "verify": "Check a dataset for damage; optionally repair it.",
    "sync": "Copy a dataset between disks and buckets.",
    "index": "Index existing WebDataset tars in place.",
    "subset": "Select samples of a dataset, without copying tars.",
    "split": "Hold out validation samples, without copying tars.",
    "merge": "Merge datasets, without copying tars.",
    "columns": "Add captions, scores or embeddings, without rewriting tars.",
    "remove": "Remove samples for good.",
    "table": "Write a table of all samples as a Parquet file.",
    "diff": "Compare two datasets.",
    "export": "Write index files for other tools.",
    "cache": "Show, prune or warm the cache.",
    "bench": "Measure the throughput of a loader.",
    "tune": "Find the best loader settings for this machine.",
    "preview": "Draw samples, or write an HTML page about a dataset.",
    "demo": "Run all steps on a few hundred pictures.",
}
"""Command → its summary in `shardflow --help`. Its code is the function `COMMAND` in `cli/COMMAND.py`."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            import difflib  # only for a mistake

            # Click suggests only imported commands.
            if not ctx.resilient_parsing and (similar := difflib.get_close_matches(cmd_name, COMMANDS, 1)):
                ctx.fail(f"No such command {cmd_name!r}. Did you mean {similar[0]!r}?")
            return None
        with ending_at_once():
            importlib.import_module("shardflow.dataset.open_dataset")  # what `shardflow` imports on first use
            module = importlib.import_module(f"{__package__}.{cmd_name}")
        command: click.Command = getattr(module, cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name, command, rest = super().resolve_command(ctx, args)
        if command is not None and not ctx.resilient_parsing:
            _refuse_repeated_options(ctx, command, rest)
        return name, command, rest

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _refuse_repeated_options(ctx: click.Context, command: click.Command, arguments: Sequence[str]) -> None:
    """Refuse an option of one value that is given twice, of which click would take the last."""
    ctx = click.Context(command, ctx, command.name)
    if isinstance(command, click.Group):
        command = next((each for name in arguments if (each := command.get_command(ctx, name))), command)
        ctx = click.Context(command, ctx, command.name)
    options = [each for each in command.params if isinstance(each, click.Option)]
    single = {name for each in options if not (each.multiple or each.is_flag or each.count) for name in each.opts}
    given = [argument.partition("=")[0] for argument in itertools.takewhile("--".__ne__, arguments)]
    if repeated := [name for name in given if name in single and given.count(name) > 1]:
        raise click.UsageError(f"{repeated[0]} takes one value, but is given twice", ctx)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardflow", message="%(prog)s %(version)s")
def shardflow() -> None:
    """Pack images once into WebDataset tar shards, stream them anywhere.

    \b
    Exit codes:
      0    success
      1    check failed: damaged dataset, too many bad inputs, datasets that differ, loader too slow
      2    wrong usage
      3    the destination already exists
      4    storage error: disk, network, permission or missing file
      130  interrupted (Ctrl-C)
      141  output pipe closed (SIGPIPE)
      143  terminated (SIGTERM)
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    if arguments is None:
        _use_utf8()
    escape_log()
    terminated, stdout = False, sys.stdout

    def terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
        nonlocal terminated
        terminated = True
        sys.exit(_print_error(WORDS[signal.SIGTERM], 128 + number))

    try:
        signal.signal(signal.SIGTERM, terminate)
        if isinstance(sys.stdout, io.TextIOWrapper):
            # File names may contain any bytes, and PYTHONIOENCODING may name an encoding that lacks some characters.
            is_utf8 = sys.stdout.encoding.lower() == "utf-8"
            sys.stdout.reconfigure(errors="surrogateescape" if is_utf8 else "backslashreplace")
        result = shardflow.main(arguments, prog_name="shardflow", standalone_mode=False, color=use_colours())
    except click.ClickException as error:
        error.show(shown := io.StringIO())
        for line in shown.getvalue().rstrip("\n").split("\n"):
            say(line, err=True)
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(_print_error(WORDS[signal.SIGINT], 128 + signal.SIGINT))
    except ShardflowError as error:
        sys.exit(_print_error(" ".join(str(error).splitlines()), error.exit_code))
    except SystemExit:
        if terminated:  # Ray catches the handler's exit and raises its own
            sys.exit(128 + signal.SIGTERM)
        if sys.stdout is not stdout:  # click replaces it when the output pipe is closed, and exits with 1
            sys.exit(128 + signal.SIGPIPE)
        raise
    except OSError as error:  # storage errors are typed: this one is of the output, such as a full disk
        sys.exit(_print_error(f"{error.filename or 'the output'}: {error.strerror or error}", 4))
    sys.exit(result if isinstance(result, int) else 0)


def _use_utf8() -> None:
    """Restart in Python's UTF-8 mode if the locale has another encoding, which cannot be changed later."""
    if sys.getfilesystemencoding() != "utf-8" and not sys.flags.utf8_mode:
        os.execv(sys.executable, [sys.executable, "-X", "utf8", *sys.orig_argv[1:]])


def _print_error(message: str, exit_code: int) -> int:
    say(message, label="shardflow:", colour="red", bold=True, err=True)
    return exit_code


_imports.close()
