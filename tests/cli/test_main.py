from __future__ import annotations

import os
import re
import subprocess
import sys

import pytest

from tests.helpers.command import exit_code


@pytest.mark.parametrize(
    ("words", "completions"),
    [("shardflow exp", ["export"]), ("shardflow export ca", ["card"]), ("shardflow info --js", ["--json"])],
)
def test_shells_complete_commands_and_options(words: str, completions: list[str]) -> None:
    """Click's completion, which the page of commands switches on, finds commands, subcommands and options."""
    environment = {"_SHARDFLOW_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    command = [sys.executable, "-m", "shardflow"]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=True)
    assert [line.removeprefix("plain,") for line in done.stdout.split()] == completions


@pytest.mark.parametrize(
    ("words", "meant"), [(["veryfy"], "'verify'"), (["cache", "prun"], "'prune'"), (["zzz"], "--help")]
)
def test_a_misspelt_command_names_the_one_that_is_meant(
    words: list[str], meant: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A command with a similar name is suggested; without one, the help is named."""
    assert exit_code(*words) == 2
    assert meant in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "repeated"),
    [
        ("pack src dst --label-column a --label-column b", "--label-column"),
        ("pack src dst --workers=2 --quality 80 --workers 3", "--workers"),
        ("cache prune --limit 1GB --limit 2GB", "--limit"),
        ("subset src dst --where a --where b", "--where"),
    ],
)
def test_an_option_that_is_given_twice_is_refused(
    words: str, repeated: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """An option of one value does not take the last of two without a word."""
    assert exit_code(*words.split()) == 2
    printed = capsys.readouterr().err
    assert f"{repeated} takes one value, but is given twice" in printed
    assert re.match(rf"Usage: shardflow {re.match('cache prune|[a-z]+', words)[0]} \[OPTIONS\]", printed)


def test_options_of_several_values_are_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    """Declarations and conditions of which there may be several are not refused, nor are names behind `--`."""
    assert exit_code("pack", "none", "dst", "--mask", "a.png", "--mask", "b.png", "--", "--quality") != 0
    assert "given twice" not in capsys.readouterr().err
