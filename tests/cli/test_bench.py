"""`shardflow bench` and `shardflow tune`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from PIL import Image

from shardflow.cli.bench import bench
from shardflow.cli.tune import tune
from tests.helpers.command import exit_code
from tests.helpers.making import make_dataset

USER_CODE = """
import shardflow
from torchvision.transforms import v2

def make_loader(**settings):
    return shardflow.Loader({url!r}, batch_size=8, transform=v2.RandomInvert(), **settings)

def nothing(**settings):
    return 1 / 0

def other(**settings):
    return "no loader"

def fail(image):
    raise ValueError("too dark")

def failing(**settings):
    return shardflow.Loader({url!r}, batch_size=8, transform=fail, **settings)
"""


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small dataset."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", {"train": [40, 40], "val": []})


@pytest.fixture(autouse=True)
def _modules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Restore the import path, to which a user's file adds its folder."""
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_bench_gives_the_verdict(url: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A slow model is fed; the chart is drawn, and the lines name throughput, baseline and stages."""
    plot = tmp_path / "bench.png"
    arguments = [str(url), "--batch-size", "8", "--workers", "1", "--seconds", "1", "--step-ms", "60000"]
    result = CliRunner().invoke(bench, [*arguments, "--size", "32", "--plot", str(plot)], catch_exceptions=False)
    assert result.exit_code == 0
    for expected in ("images/s", "CPU-ms per image", "baseline", "decode", "transfer", "fed: a batch every", str(plot)):
        assert expected in result.output
    with Image.open(plot) as picture:
        assert picture.format == "PNG"
        assert picture.width > 1000
    assert "was left" not in caplog.text  # the measurement's own epochs


def test_bench_of_the_users_own_loader_starves(url: Path, tmp_path: Path) -> None:
    """The loader of a user's file is measured with its transform; a starving model is exit code 1."""
    file = tmp_path / "my_loader.py"
    file.write_text(USER_CODE.format(url=str(url)))
    arguments = ["--loader", f"{file}:make_loader", "--workers", "0", "--seconds", "1", "--step-ms", "0.001", "--json"]
    result = CliRunner().invoke(bench, arguments, standalone_mode=False, catch_exceptions=False)
    assert result.return_value == 1
    found = json.loads(result.stdout)
    assert found["fed"] is False
    assert found["batch_size"] == 8
    assert found["stage_cpu_ms_per_image"]["augment"] > 0


def test_tune_prints_the_line_to_paste(url: Path) -> None:
    """The table, the bottleneck, and a call of `shardflow.Loader` with the recommended settings."""
    arguments = [str(url), "--batch-size", "8", "--size", "32", "--seconds", "0.5"]
    result = CliRunner().invoke(tune, arguments, catch_exceptions=False)
    assert result.exit_code == 0
    lines = result.output.splitlines()
    assert sum("<- recommended" in line for line in lines) == 1
    assert any(line.startswith("bottleneck") for line in lines)
    assert any(f"shardflow.Loader({str(url)!r}, split='train', batch_size=8, num_workers=" in line for line in lines)


def test_a_mistake_costs_no_import_of_torch(tmp_path: Path) -> None:
    """A dataset that does not exist is an error before torch, whose import takes seconds."""
    code = f"""
import sys
from shardflow.cli.main import main
try:
    main([{{command!r}}, {str(tmp_path / "none")!r}])
finally:
    print(sorted({{{{"torch", "torchvision"}}}} & sys.modules.keys()))
"""
    for command in ("bench", "tune"):
        done = subprocess.run([sys.executable, "-c", code.format(command=command)], capture_output=True, text=True)
        assert (done.returncode, done.stdout) == (4, "[]\n"), done.stderr


def test_wrong_usage_is_one_line(url: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Every mistake is reported in one line, with the line of the user's own code; never with a traceback."""
    file, taken = tmp_path / "their_loader.py", tmp_path / "other" / "json.py"
    file.write_text(USER_CODE.format(url=str(url)))
    taken.parent.mkdir()
    taken.touch()
    broken = tmp_path / "broken.py"
    broken.write_text("import no_such_module_anywhere\n")
    quits = tmp_path / "quits.py"
    quits.write_text("raise SystemExit(7)\n")
    for arguments, code, message in (
        (["bench"], 2, "either the URL"),
        (["tune", str(url), "--loader", "x.py:f"], 2, "either the URL"),
        (["tune", "--loader", "x.py:f"], 2, "no Python file"),
        (["tune", "--loader", "x.ipynb:f"], 2, "--loader train.py:f"),
        (["tune", "--loader", "x.py"], 2, "expected FILE.py:FUNCTION, such as x.py:make_loader"),
        (["bench", "--loader", ":f"], 2, "expected FILE.py:FUNCTION"),
        (["bench", str(url), "--split", "none"], 2, "has no split 'none'"),
        (["tune", "--loader", f"{file}:absent"], 2, "no function 'absent'"),
        (["tune", "--loader", f"{file}:nothing"], 2, "line 9: ZeroDivisionError"),
        (["bench", "--loader", f"{file}:other"], 2, "must return a shardflow.Loader"),
        (["bench", "--loader", f"{file}:failing", "--workers", "0"], 2, "line 15: ValueError: too dark"),
        (["bench", "--loader", f"{file}:failing", "--workers", "1"], 2, "line 15: ValueError: too dark"),
        (["bench", "--loader", f"{taken}:f"], 2, "rename the file"),
        (["bench", "--loader", f"{broken}:f"], 2, "no_such_module_anywhere"),
        (["bench", "--loader", f"{quits}:f"], 7, ""),
        (["bench", str(url), "--plot", str(tmp_path / "no/such.png")], 2, "does not exist"),
        (["bench", str(url), "--split", "val"], 2, "has no samples"),
        (["bench", str(url), "--seconds", "0"], 2, "seconds must be above 0"),
        (["tune", str(url), "--seconds", "-1"], 2, "seconds must be above 0"),
        (["bench", str(tmp_path / "nothing")], 4, "does not exist"),
        (["tune", str(tmp_path / "nothing")], 4, "does not exist"),
    ):
        found = exit_code(*arguments)
        error = capsys.readouterr().err
        assert found == code, (arguments, error)
        assert message in error, (arguments, error)
        assert "Traceback" not in error
        if code == 4:  # before the measurement, so without a progress bar
            assert error.count("\n") == 1
