"""What was measured, as a Markdown table and as a picture."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from page import fill, markdown

COLOURS = {"4:2:0": "#d1495b", "4:2:2": "#edae49", "4:4:4": "#00798c", "webp": "#8d99ae"}
PANELS = (
    ("bytes", 1e-3, "kB per image"),
    ("decode_us", 1.0, "decoding, CPU-µs per image"),
    ("psnr_db", 1.0, "PSNR, dB"),
    ("ssim", 1.0, "SSIM of luma (one line for all of JPEG's subsamplings)"),
)
SHOWN = (60, 75, 85, 90, 95, 98)
"""Qualities in the table; the picture has all of them."""
DEFAULT = ("4:2:0", 90)


def table(results: dict[str, Any]) -> str:
    """Return the table."""
    columns = ("format", "quality", "kB/image", "decoding, CPU-µs", "PSNR dB", "worst", "SSIM")
    lines = []
    for row in results["rows"]:
        if row["quality"] not in (*SHOWN, None):
            continue
        cells = (
            {"webp": "WebP", "png": "PNG"}.get(row["name"], f"JPEG {row['name']}"),
            row["quality"] or "lossless",
            f"{row['bytes'] / 1000:.1f}",
            f"{row['decode_us']:,.0f}",
            f"{row['psnr_db']:.1f}",
            f"{row['worst_psnr_db']:.1f}",
            f"{row['ssim']:.4f}",
        )
        lines.append(tuple(f"**{cell}**" if (row["name"], row["quality"]) == DEFAULT else str(cell) for cell in cells))
    return markdown(columns, lines)


def chart(results: dict[str, Any], path: Path) -> None:
    """Draw what each quality costs and gives."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, grid = pyplot.subplots(2, 2, figsize=(11, 7.5))
    for axes, (column, unit, title) in zip(grid.flat, PANELS, strict=True):
        for name, colour in COLOURS.items():
            if (name, column) == ("webp", "decode_us"):
                continue  # several times higher than the others, and said in the title
            rows = [row for row in results["rows"] if row["name"] == name]
            values = [row[column] * unit for row in rows]
            label = "WebP" if name == "webp" else f"JPEG {name}"
            axes.plot([row["quality"] for row in rows], values, color=colour, marker="o", markersize=3, label=label)
            for row, value in zip(rows, values, strict=True):
                if (name, row["quality"]) == DEFAULT:
                    axes.plot([row["quality"]], [value], color=colour, marker="o", markersize=10, fillstyle="none")
        if column == "decode_us":
            others = [row[column] for row in results["rows"] if row["name"] == "webp"]
            title += f" (WebP: {min(others):,.0f} to {max(others):,.0f})"
        axes.set_title(title, fontsize=11, loc="left")
        axes.set_xlabel("quality", fontsize=9)
        axes.grid(axis="y", color="#dddddd", linewidth=0.6)
        axes.spines[["top", "right"]].set_visible(False)
    for axes in grid[0]:
        axes.set_ylim(bottom=0)
    grid[0][0].legend(frameon=False, fontsize=9)
    figure.text(0.01, 0.01, results["caption"], fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1))
    figure.savefig(path, dpi=130)


def publish(results: dict[str, Any], page: Path) -> None:
    """Put the table and the caption into a page, between the lines that mark their places."""
    fill(page, {"table": table(results), "caption": results["caption"] + "\n"})


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("results", type=Path)
    parser.add_argument("--chart", type=Path)
    parser.add_argument("--publish", type=Path, metavar="PAGE", help="Markdown page to put the table into")
    given = parser.parse_args()
    loaded = json.loads(given.results.read_text())
    print(table(loaded))
    if given.chart:
        chart(loaded, given.chart)
    if given.publish:
        publish(loaded, given.publish)
