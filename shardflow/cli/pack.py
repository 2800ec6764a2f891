"""`shardflow pack SRC DST`."""

from __future__ import annotations

from typing import NoReturn

import click
from tqdm import tqdm

from shardflow.pack import PackReport, Progress
from shardflow.pack import pack as run_pack
from shardflow.pack.recipe import SUBSAMPLINGS


@click.command(short_help="Pack a folder of images into a dataset.")
@click.argument("src", type=click.Path())
@click.argument("dst", type=click.Path())
@click.option("--short-side", default=256, show_default=True, help="Pixels of the shorter side.")
@click.option("--quality", default=90, show_default=True, help="JPEG quality, 1 to 100.")
@click.option("--subsampling", default="4:2:0", show_default=True, help=f"Chroma: {', '.join(SUBSAMPLINGS)}.")
@click.option("--keep-small", is_flag=True, help="Copy the bytes of JPEGs that need no change.")
@click.option("--enlarge", is_flag=True, help="Enlarge smaller images to the short side.")
@click.option("--no-shuffle", is_flag=True, help="Keep the order of the paths.")
@click.option("--seed", default=0, show_default=True, help="Of the shuffle.")
@click.option("--shard-samples", default=2048, show_default=True, help="Inputs per shard.")
@click.option("--workers", type=int, help="Processes.  [default: one per core]")
@click.option("--max-bad", default=0, show_default=True, help="Inputs that may be quarantined.")
def pack(
    src: str,
    dst: str,
    short_side: int,
    quality: int,
    subsampling: str,
    keep_small: bool,
    enlarge: bool,
    no_shuffle: bool,
    seed: int,
    shard_samples: int,
    workers: int | None,
    max_bad: int,
) -> None:
    """Resize the images below SRC and write them to DST as a dataset.

    SRC holds CLASS/x.jpg, or train/CLASS/x.jpg with other splits beside it, or x.jpg without labels. A pack that was
    stopped goes on when the same command is run again.

    \b
    Example:
      shardflow pack photos/ photos256/ --short-side 256 --quality 90
    """
    with _Bar() as bar:
        try:
            report = run_pack(
                src,
                dst,
                short_side=short_side,
                quality=quality,
                subsampling=subsampling,
                keep_small=keep_small,
                enlarge=enlarge,
                shuffle=not no_shuffle,
                seed=seed,
                shard_samples=shard_samples,
                max_bad=max_bad,
                workers=workers,
                progress=bar.show,
            )
        except (KeyboardInterrupt, SystemExit):
            bar.close()
            click.echo("shardflow: stopped; what was packed is kept: run the same command again to go on", err=True)
            raise
    click.echo(_summary(report, dst))


class _Bar:
    """A progress bar that appears with the first news."""

    def __init__(self) -> None:
        self._bar: tqdm[NoReturn] | None = None

    def __enter__(self) -> _Bar:
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    def close(self) -> None:
        if self._bar is not None:
            self._bar.close()

    def show(self, progress: Progress) -> None:
        if self._bar is None:
            self._bar = tqdm(total=progress.inputs, initial=progress.resumed, desc="packing", unit=" images")
        self._bar.set_postfix_str(f"{_megabytes(progress.bytes_in)} -> {_megabytes(progress.bytes_out)}", refresh=False)
        self._bar.update(progress.done - self._bar.n)


def _summary(report: PackReport, dst: str) -> str:
    fresh = report.inputs - report.resumed
    lines = [
        f"packed       {report.packed} of {report.inputs} inputs into {report.shards} shards below {dst}",
        f"bytes        {_megabytes(report.bytes_in)} -> {_megabytes(report.bytes_out)}",
        f"time         {report.seconds:.1f} s, {fresh / report.seconds:.0f} images/s",
        f"fingerprint  {report.fingerprint}",
    ]
    if report.resumed:
        lines.insert(1, f"resumed      {report.resumed} inputs had been done before")
    if report.quarantined:
        lines.append(f"quarantined  {report.quarantined}, listed in quarantine.jsonl")
        lines += [
            f"  {count:6d}  {reason}" for reason, count in sorted(report.reasons.items(), key=lambda entry: -entry[1])
        ]
    if report.ignored:
        kinds = ", ".join(f"{count} {extension or 'without extension'}" for extension, count in report.ignored.items())
        lines.append(f"no images    {kinds}")
    return "\n".join([*lines, f"next         shardflow verify {dst}"])


def _megabytes(count: int) -> str:
    return f"{count / 1e6:.1f} MB"
