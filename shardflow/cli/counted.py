"""What `shardflow info` says about the statistics that were gathered while packing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from shardflow.formats.statistics import Statistics, median

_SPOKEN = {
    "converted": "converted from their profile to sRGB",
    "enlarged": "enlarged",
    "first_frame": "first frames of several",
    "kept": "kept byte for byte",
    "profile_unusable": "with a profile that cannot be used",
    "turned": "turned upright",
}


def counted_lines(statistics: Mapping[str, Statistics]) -> Iterator[tuple[str, str]]:
    """Yield a name and a text for each thing worth saying."""
    total = sum(statistics.values(), Statistics())
    images = total.counts["images"]
    if not images:
        return
    yield "before", _sizes(total.widths_before, total.heights_before, total.counts["bytes_before"] / images)
    yield "after", _sizes(total.widths_after, total.heights_after, total.counts["bytes_after"] / images)
    done = said(total.counts)
    if done:
        yield "done", "; ".join(done)
    for split, counted in statistics.items():
        if counted.classes:
            fewest, most = min(counted.classes.values()), max(counted.classes.values())
            each = f"{fewest:,} to {most:,}" if fewest < most else f"{most:,}"
            yield "balance", f"{split}: {each} images in each of {len(counted.classes):,} classes"


def said(counts: Mapping[str, int]) -> list[str]:
    """Return what was done to images, and to how many, in words."""
    return [f"{counts[name]:,} {words}" for name, words in _SPOKEN.items() if counts.get(name)]


def _sizes(widths: Mapping[int, int], heights: Mapping[int, int], size: float) -> str:
    middle = f"about {median(widths)} x {median(heights)} pixels in the median"
    ranges = f"{min(widths)} to {max(widths)} wide, {min(heights)} to {max(heights)} high"
    return f"{middle}, {ranges}, {size / 1000:,.1f} kB on average"
