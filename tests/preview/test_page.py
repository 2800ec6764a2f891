"""The page, in a real browser: on a narrow and a wide screen, light and dark."""

from __future__ import annotations

import io
import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import shardflow
from shardflow.preview.augmented import augmented
from shardflow.preview.page import write_page
from tests.helpers.browser import Browser, Seen, executable
from tests.helpers.making import make_dataset
from tests.helpers.packed import CLASSES

WIDTHS = 390, 1400
ASKED = {
    "overflow": "document.documentElement.scrollWidth - window.innerWidth",
    "headings": "[...document.querySelectorAll('h1, h2')].map(each => each.innerText)",
    "unseen": "[...document.images].filter(each => !each.alt || !each.naturalWidth).length",
    "images": "document.images.length",
    "paper": "getComputedStyle(document.body).backgroundColor",
    # Text and the paper or card that it stands on, as [size in pixels, "rgb(...)", "rgb(...)"].
    "inks": """[...document.querySelectorAll('p, dt, dd, th, td, figcaption, .faint, .good, .bad, h2, .name, .number')]
        .map(each => [getComputedStyle(each).color,
                      getComputedStyle(each.closest('section, .facts div') || document.body).backgroundColor])""",
    "charts": "[...document.querySelectorAll('svg')].map(each => [each.getAttribute('role'), each.ariaLabel])",
}


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all of these tests."""
    if executable() is None:
        pytest.skip("Chromium is not installed: apt install chromium")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(packed: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a dataset with everything that there is to show."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    findings = shardflow.verify(packed[1])
    dataset = shardflow.open(packed[1])
    versions, shown = {"shardflow": "1.2.3"}, augmented(dataset, "train", 5, versions=3)
    write_page(dataset, path, split="train", count=12, findings=findings, versions=versions, augmented=shown)
    return path


@pytest.fixture(scope="module")
def seen(browser: Browser, page: Path) -> dict[tuple[int, bool], Seen]:
    """What the page looks like by width, and whether it is dark."""
    return {
        (width, dark): browser.look(page, width=width, dark=dark, evaluate=ASKED)
        for width in WIDTHS
        for dark in (False, True)
    }


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_the_screen_and_asks_for_nothing(
    seen: dict[tuple[int, bool], Seen], page: Path, width: int, dark: bool
) -> None:
    """On any screen nothing sticks out, nothing is fetched, the console is silent, every image is there and named."""
    look = seen[width, dark]
    assert look.values["overflow"] <= 0
    assert [url for url in look.requests if not url.startswith("data:")] == [page.as_uri()]
    assert look.complaints == []
    assert look.values["images"] == 12 + 4 + 1
    assert look.values["unseen"] == 0
    assert look.values["headings"][1:] == [
        *("Samples", "Sample 5 of train", "Classes", "Sizes", "Bytes per image", "Mixing", "Recipe"),
        *("Verification", "Quarantine", "Identity"),
    ]
    assert all(role == "img" and label for role, label in look.values["charts"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_can_be_read(seen: dict[tuple[int, bool], Seen], dark: bool) -> None:
    """All text stands out from its ground by 4.5 to 1 (WCAG 2.1, AA), in the dark on a dark ground."""
    look = seen[1400, dark]
    assert (luminance(look.values["paper"]) < 0.1) == dark
    worst = min(contrast(ink, ground) for ink, ground in look.values["inks"])
    assert worst >= 4.5
    with Image.open(io.BytesIO(look.picture)) as picture:
        corner = np.asarray(picture.convert("RGB"))[:5, :5]
    assert (corner.mean() < 60) == dark


def test_broken_pages_are_noticed(browser: Browser, tmp_path: Path) -> None:
    """A page that sticks out, fetches, complains and shows no image is seen to do so: the tests above can fail."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<div style="width:900px">x</div><img src="http://127.0.0.1:9/x.png"><script>console.error(1)</script>'
    )
    look = browser.look(bad, width=390, dark=False, evaluate=ASKED)
    assert look.values["overflow"] > 400
    assert "http://127.0.0.1:9/x.png" in look.requests
    assert look.complaints
    assert look.values["unseen"] == 1


def test_page_says_what_the_dataset_is(packed: tuple[Path, Path], page: Path) -> None:
    """Counts, sizes before and after, recipe, verification, the refused and the fingerprint are in it."""
    html, dataset = page.read_text(), shardflow.open(packed[1])
    text = re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*</style>", "", html, flags=re.DOTALL))
    counted = (dataset.manifest.statistics or {})["train"].counts
    for expected in (
        dataset.fingerprint,
        "Sound: every shard",
        "3 of 39 inputs were refused",
        "the file is empty",
        "before: 144 to 248",
        f"{round(counted['bytes_before'] / 36):,}",
        f"{round(counted['bytes_after'] / 36):,}",
        "short side",
        "A batch of 9 draws from",
        "1.2.3",
    ):
        assert expected in text, expected
    assert "<script" not in html
    assert "cat & <dog>" not in html
    assert "cat &amp; &lt;dog&gt;" in html
    assert CLASSES[1] in dataset.classes  # type: ignore[operator]


def test_page_of_a_bare_dataset(tmp_path: Path) -> None:
    """Without labels, statistics or a quarantine, and with damage, there is still a page, which says what it lacks."""
    url = make_dataset(tmp_path / "set", [30, 30], labelled=False)
    for shard, place in (("000000", slice(700, 710)), ("000001", slice(-4000, -1500))):
        tar = url / f"train/{shard}.tar"
        data = bytearray(tar.read_bytes())
        data[place] = bytes(len(data[place]))
        tar.write_bytes(data)
    findings = shardflow.verify(url)
    assert findings
    path = tmp_path / "page.html"
    write_page(shardflow.open(url), path, split="train", count=6, findings=findings, versions={})
    html = path.read_text()
    for expected in ("The samples have no labels", f"{len(findings)} findings", "No input was refused", "needs labels"):
        assert expected in html, expected
    assert "train/000000.tar, sample 000000000" in html
    assert html.count("<figure>") == 6


def luminance(color: str) -> float:
    """Relative luminance of "rgb(r, g, b)", 0 … 1 (WCAG 2.1)."""
    channels = [int(channel) / 255 for channel in re.findall(r"\d+", color)[:3]]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(a: str, b: str) -> float:
    """Contrast ratio of two colours, 1 … 21."""
    lighter, darker = sorted((luminance(a), luminance(b)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def test_contrast_is_measured_right() -> None:
    """Black on white has 21 to 1, and equal colours 1 to 1."""
    assert contrast("rgb(0, 0, 0)", "rgb(255, 255, 255)") == pytest.approx(21)
    assert contrast("rgb(9, 9, 9)", "rgb(9, 9, 9)") == pytest.approx(1)
