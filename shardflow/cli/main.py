"""The `shardflow` command: finds the subcommand, and turns errors and signals into one line and an exit code.

Subcommands are imported when they are asked for, so that those that do not need torch do not wait for it.
"""

from __future__ import annotations

import importlib
import io
import signal
import sys
from collections.abc import Sequence
from types import FrameType
from typing import NoReturn

import click

from shardflow import __version__
from shardflow.errors import ShardflowError

COMMANDS = {
    "pack": "Pack images into a dataset.",
    "extend": "Add what is new in a source to a dataset.",
    "info": "Show what a dataset holds.",
    "verify": "Read a whole dataset and name everything that is wrong with it.",
    "sync": "Copy a dataset between disks and buckets, verified.",
    "index": "Make existing tars readable where they are.",
    "subset": "Make a dataset of some samples of another, over the same tars.",
    "split": "Hold out a validation part of a dataset, over the same tars.",
    "merge": "Make one dataset of several, over the same tars.",
    "diff": "Say how two datasets differ.",
    "export": "Write what other tools need to read a dataset.",
    "cache": "Show what the cache of remote shards holds, prune it, or warm it.",
    "bench": "Measure the loader against what this machine can decode.",
    "tune": "Find the loader's settings that suit this machine.",
    "preview": "Draw samples of a dataset, or write a page about it.",
    "demo": "Show all of it on a few hundred pictures, in a minute.",
}
"""Command → its line in the group's help. Its code is `cli/COMMAND.py`, the function `COMMAND`."""


class _Commands(click.Group):
    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - click's signature
        if cmd_name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(f"{__package__}.{cmd_name}"), cmd_name)
        assert isinstance(command, click.Command)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="shardflow", message="%(prog)s %(version)s")
def shardflow() -> None:
    """Pack images once into WebDataset tar shards, stream them anywhere.

    \b
    Exit codes:
      0    fine
      1    the check failed: damage was found, too many inputs were bad, or a model would starve
      2    wrong usage
      3    the destination exists
      4    the store failed: a disk, a permission, a missing file
      130  interrupted (Ctrl-C); 141 nobody reads on (SIGPIPE); 143 terminated (SIGTERM)
    """


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """Run the command line and exit."""
    terminated, stdout = False, sys.stdout

    def terminate(number: int, frame: FrameType | None) -> NoReturn:  # noqa: ARG001 - the signature of a handler
        nonlocal terminated
        terminated = True
        sys.exit(_say("terminated", 128 + number))

    signal.signal(signal.SIGTERM, terminate)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="surrogateescape")  # names of files may be any bytes
    try:
        result = shardflow.main(arguments, prog_name="shardflow", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(_say("interrupted", 128 + signal.SIGINT))
    except ShardflowError as error:
        sys.exit(_say(" ".join(str(error).splitlines()), error.exit_code))
    except SystemExit:
        if terminated:  # Ray hands the handler's on with a code of its own
            sys.exit(128 + signal.SIGTERM)
        if sys.stdout is not stdout:  # click put another in its place when nobody read on, and exits with 1
            sys.exit(128 + signal.SIGPIPE)
        raise
    except OSError as error:  # the stores' are named by now: it is the output, such as a file on a full disk
        sys.exit(_say(f"{error.filename or 'the output'}: {error.strerror or error}", 4))
    sys.exit(result if isinstance(result, int) else 0)


def _say(message: str, exit_code: int) -> int:
    click.echo(f"shardflow: {message}", err=True)
    return exit_code
