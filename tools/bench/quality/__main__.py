"""Measures what a recipe's quality and subsampling cost and give, on photographs.

    python3 tools/bench/quality --images DIR

makes the environment, packs every JPEG below DIR at some fifty settings, and writes results.json, table.md and
recipe.png to --output. Takes five minutes for a hundred photographs, and the first time some downloads.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shutil
import subprocess
from pathlib import Path

from environments import PROJECT, Environments
from machine import hardware

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, required=True, help="folder of JPEGs, of any size")
    parser.add_argument("--rounds", type=int, default=15, help="of decoding")
    parser.add_argument("--publish", action="store_true", help="put the results into docs/recipe.md")
    parser.add_argument("--environments", type=Path, default=PROJECT / ".venv-bench")
    parser.add_argument("--output", type=Path, default=PROJECT / "build" / "bench-quality")
    given = parser.parse_args()

    given.output.mkdir(parents=True, exist_ok=True)
    python = str(Environments(given.environments).python("common"))
    file = given.output / "results.json"
    measure = [python, str(HERE / "measure.py"), str(given.images), str(file), "--rounds", str(given.rounds)]
    subprocess.run(measure, check=True)
    results = json.loads(file.read_text())
    date = datetime.datetime.now(datetime.timezone.utc).date().isoformat()
    results["caption"] = (
        f"{results['photographs']} photographs, short side 256; decoding to a random crop of 224 pixels on one thread; "
        f"{hardware()}; {date}."
    )
    file.write_text(json.dumps(results, indent=1) + "\n")
    report = [python, str(HERE / "report.py"), str(file)]
    table = subprocess.run(
        [*report, "--chart", str(given.output / "recipe.png")], check=True, capture_output=True, text=True
    )
    (given.output / "table.md").write_text(table.stdout)
    print(table.stdout)
    if given.publish:
        shutil.copy(file, HERE / "results.json")
        shutil.copy(given.output / "recipe.png", PROJECT / "docs" / "recipe.png")
        subprocess.run(
            [python, str(HERE / "report.py"), str(file), "--publish", str(PROJECT / "docs" / "recipe.md")], check=True
        )


if __name__ == "__main__":
    main()
