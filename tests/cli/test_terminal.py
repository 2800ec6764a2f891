"""What commands print: no text from data controls the terminal."""

from __future__ import annotations

import json
import sys
import threading
import unicodedata
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import shardflow
from shardflow._wording import printable
from shardflow.cli.progress_bars import show_waiting
from shardflow.errors import ConfigError, ManifestError
from shardflow.formats import manifest
from shardflow.packing.progress import progress_bar
from tests.helpers.command import exit_code, run
from tests.helpers.folders import photo, write_tree
from tests.helpers.making import flip, jpeg, make_dataset
from tests.helpers.tars import write_tar

HOSTILE = (
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "two\nlines",
    "\u202eesrever",
    "\x9b2J",
    "end\u2028",
    "back\b\b\r",
    "\x7f",
)
"""Names that colour, rename, move or clear a terminal, or look like several lines."""


def pictures(root: Path) -> Path:
    """Write a folder with a class of each name, whose files have such names too, and bad inputs."""
    files = {f"{name}/{n}{name}.jpg": photo(n) for n, name in enumerate((*HOSTILE, *HOSTILE))}
    bad = {f"{HOSTILE[0]}/{name}.jpg": b"bad" for name in HOSTILE}
    return write_tree(root / "src", {**files, **bad, f"{HOSTILE[1]}/x{HOSTILE[0]}.psd": b"8BPS"})


def tars(root: Path) -> Path:
    """Write a tar whose keys have such names, and one sample is bad."""
    members = [(f"{n}{name}.{part}", data) for n, name in enumerate(HOSTILE) for part, data in parts(n)]
    write_tar(root / f"tars/{HOSTILE[0]}.tar", [*members, (f"bad{HOSTILE[0]}.cls", b"x")])
    return root / "tars"


def parts(number: int) -> list[tuple[str, bytes]]:
    """Return the parts of a sample, one of which has such a name."""
    return [("cls", b"%d" % (number % 2)), ("jpg", jpeg(number)), (f"a{HOSTILE[0]}", b"x")]


def assert_harmless(printed: str) -> None:
    """Fail if anything reached the terminal that is neither printable, nor the end of a line, nor a progress bar."""
    raw = {one for one in printed.replace("\x1b[A", "") if not one.isprintable()} - {"\n", "\r"}
    assert not raw, (raw, printed)
    assert "\nlines" not in printed
    assert "\b\r" not in printed


def test_hostile_names(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """Whatever classes, keys, files and parts are called, every command shows it escaped; JSON is JSON."""
    src, dst, indexed = pictures(tmp_path), tmp_path / "dst", tmp_path / f"indexed{HOSTILE[3]}"
    pack = ("pack", str(src), str(dst), "--executor", "serial")
    damaged = tmp_path / "damaged"
    told: dict[str, tuple[int, str]] = {}

    def tell(*arguments: object) -> None:
        code = exit_code(*map(str, arguments))
        out, err = capfd.readouterr()
        told[" ".join(map(str, arguments))] = code, out + err
        if "--json" in arguments and code in (0, 1):
            json.loads(out)
            assert_harmless(err)
        else:
            assert_harmless(out + err)
        expected = {0, 1, 2, 3, 4}
        assert code in expected, (code, err)

    tell(*pack, "--dry-run")
    tell(*pack)
    tell(*pack, "--max-errors", 99)
    assert shardflow.open(dst).manifest.samples == 2 * len(HOSTILE)
    tell("index", tars(tmp_path) / "*.tar", "--to", indexed)
    tell("index", tars(tmp_path), "--to", indexed, "--max-errors", 9)
    shardflow.sync(dst, damaged)
    for tar in damaged.rglob("*.tar"):
        flip(tar, 1000, 3000)
    for url in (dst, indexed, damaged):
        tell("info", url)
        tell("info", url, "--json")
        tell("verify", url)
        tell("verify", url, "--json")
        tell("diff", dst, url)
        tell("diff", url, dst, "--json")
        tell("preview", url, "--output", tmp_path / f"{HOSTILE[0]}.png")
        tell("preview", url, "--quarantine", "--output", tmp_path / "q.png")
        tell("preview", url, "--class", HOSTILE[0], "--output", tmp_path / "c.png")
        tell("preview", url, "--class", f"none{HOSTILE[0]}", "--output", tmp_path / "c.png")
        for kind in ("card", "dali", "energon"):
            tell("export", kind, url, tmp_path / f"out-{kind}{HOSTILE[0]}")
            tell("export", kind, url)
    tell("verify", dst, "--source", src)
    tell("verify", dst, "--source", tmp_path / HOSTILE[0])
    tell("verify", damaged, "--repair", src)
    for name in (*HOSTILE, f"none{HOSTILE[0]}"):
        tell("subset", dst, tmp_path / f"subset{name}", "--classes", name)
    tell("split", dst, tmp_path / f"split{HOSTILE[0]}", "--val", "0.2")
    tell("merge", dst, indexed, tmp_path / f"merged{HOSTILE[0]}")
    tell("sync", dst, tmp_path / f"copy{HOSTILE[0]}")
    tell("sync", dst, tmp_path / f"copy{HOSTILE[0]}")
    write_tree(src, {f"new{HOSTILE[0]}/{HOSTILE[2]}.jpg": photo(3), f"{HOSTILE[0]}/bad.jpg": photo(2)})
    write_tree(src, {f"{HOSTILE[0]}/0{HOSTILE[0]}.jpg": photo(9)})
    tell("extend", src, dst, "--executor", "serial", "--dry-run")
    tell("extend", src, dst, "--executor", "serial")
    tell("extend", src, dst, "--executor", "serial", "--on-conflict", "add")
    tell("cache", "--cache-dir", tmp_path / HOSTILE[0])
    tell("bench", tmp_path / HOSTILE[0])
    tell("info", dst, f"--{HOSTILE[0]}")
    tell(HOSTILE[0])
    shown = "".join(text for _, text in told.values())
    for name in HOSTILE:
        assert printable(name) in shown or ascii(name)[1:-1] in shown, name


def test_logged_text_is_escaped(tmp_path: Path) -> None:
    """A warning that the library logs is printed in the same way."""
    src = write_tree(tmp_path / "src", {"a/1.jpg": photo(1), f"a/{HOSTILE[0]}{HOSTILE[2]}.psd": b"8BPS"})
    done = run("pack", src, tmp_path / "dst", "--max-errors", 1, "--executor", "serial")
    assert done.returncode == 0
    assert "left out" in done.stderr
    assert_harmless(done.stderr)


@given(st.text(st.characters()))
def test_printable(text: str) -> None:
    """An escaped text is printable and can be written as UTF-8; a printable one stays as it is."""
    shown = printable(text)
    assert shown.isprintable()
    shown.encode()
    assert not any(unicodedata.category(one) in ("Cc", "Cf", "Cs", "Zl", "Zp") for one in shown)
    assert printable(shown) == shown


@pytest.mark.parametrize("name", ["\ud800", "a\udcff"])
def test_half_surrogates_are_refused(tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """No manifest has half of a surrogate pair in a text: a source with such a class is refused, as is the manifest."""
    rows = [{"image": photo(n), "label": label} for n, label in enumerate((name, "b"))]
    with pytest.raises(ConfigError, match=r"class .*rename it"):
        shardflow.pack(shardflow.sources.Collection(rows), tmp_path / "dst", executor="serial")
    with pytest.raises(ConfigError, match=r"class .*rename it"):
        shardflow.pack(
            shardflow.sources.Collection([{"image": photo(1), "label": 0}], classes=[name]), tmp_path / "dst"
        )
    data = make_dataset(tmp_path / "set", [3])
    path = data / manifest.FILE_NAME
    content = json.loads(path.read_text())
    for entry, value in (("classes", [name, "b", "c"]), ("recipe", {name: 1}), ("tools", {"x": name})):
        changed = {**content, entry: value}
        identity = {key: each for key, each in changed.items() if key not in ("fingerprint", "tools", "bases")}
        changed["fingerprint"] = manifest._fingerprint(identity, None)
        path.write_text(json.dumps(changed, sort_keys=True, indent=1) + "\n")
        with pytest.raises(ManifestError, match="not Unicode"):
            shardflow.open(data)
        for command in (["info"], ["export", "card"], ["diff", str(data)], ["verify"]):
            assert exit_code(*command, str(data)) == 1
            assert "Traceback" not in capsys.readouterr().err


def test_a_log_gets_few_lines(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """In a file or a pipe, a bar writes whole lines, one now and then, and none of work that is soon done."""
    monkeypatch.delitem(sys.modules, "ipykernel", raising=False)  # a trainer's test may have imported it
    for pause_s, lines in ((60.0, []), (0.0, ["packing:   0%", "packing:  50%", "packing: 100%", "packing: 100%"])):
        monkeypatch.setattr("shardflow.packing.progress.LOG_S", pause_s)
        with progress_bar(total=2, desc="packing") as bar:
            bar.update()
            bar.update()
        assert [line[:13] for line in capsys.readouterr().err.splitlines()] == lines


def test_work_without_counts_shows_its_time(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """In a terminal the time advances while nothing is finished; a pipe, and work that is soon done, get nothing."""
    ticks = iter(range(3))
    monkeypatch.setattr("shardflow.cli.progress_bars._TICK_S", 0.01)
    for is_terminal, delay in ((False, 0.0), (True, 60.0), (True, 0.0)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda shown=is_terminal: shown)
        monkeypatch.setattr("shardflow.cli.progress_bars.DELAY_S", delay)
        begun = threading.active_count()
        with show_waiting("merging"):
            for _ in ticks if is_terminal and not delay else ():
                seen = ""
                while "merging: 00:" not in seen:
                    seen += capsys.readouterr().err
        assert threading.active_count() == begun
        if not is_terminal or delay:
            assert capsys.readouterr().err == ""
