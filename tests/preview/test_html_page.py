"""The HTML page, in a real browser: on a narrow and a wide screen, light and dark."""

from __future__ import annotations

import io
import itertools
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import shardflow
from shardflow.preview import markup
from shardflow.preview.augmentation import augment_sample, training_loader
from shardflow.preview.contact_sheet import Tile
from shardflow.preview.html_page import write_page
from shardflow.preview.markup import gallery, section
from shardflow.preview.markup import page as page_of
from tests.helpers.browser import Browser, Rendered, executable
from tests.helpers.folders import write_tree
from tests.helpers.making import jpeg, make_dataset

CLASSES = "bridge", "cat & <dog>", "fern"
WIDTHS = 390, 1400
EVALUATED = {
    "overflow": "document.documentElement.scrollWidth - window.innerWidth",
    "headings": "[...document.querySelectorAll('h1, section > h2')].map(each => each.innerText)",
    "broken": "[...document.images].filter(each => !each.alt || !each.naturalWidth).length",
    "images": "document.images.length",
    "paper": "getComputedStyle(document.body).backgroundColor",
    # Text and the paper or card that it stands on, as [size in pixels, "rgb(...)", "rgb(...)"].
    "inks": """[...document.querySelectorAll('p, dt, dd, th, td, figcaption, .faint, .good, .bad, h2, .name, output')]
        .map(each => [getComputedStyle(each).color,
                      getComputedStyle(each.closest('section, .facts div') || document.body).backgroundColor])""",
    "charts": "[...document.querySelectorAll('svg')].map(each => [each.getAttribute('role'), each.ariaLabel])",
}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A packed dataset: 36 samples of three classes in 4 shards, 3 inputs in quarantine."""
    root = tmp_path_factory.mktemp("preview")
    files = {f"{CLASSES[n % 3]}/{n:02}.jpg": jpeg(n, 150 + 3 * n, 100 + n) for n in range(36)}
    files |= {"fern/cut.jpg": jpeg(99, 300, 200)[:4000], "fern/words.jpg": b"no picture", "fern/nothing.png": b""}
    source = write_tree(root / "source", {f"train/{name}": payload for name, payload in files.items()})
    shardflow.pack(source, root / "dataset", short_side=96, shard_samples=10, executor="serial", max_errors=3)
    return root / "dataset"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """A browser for all of these tests."""
    if executable() is None:
        pytest.skip("Chromium is not installed: apt install chromium")
    opened = Browser(tmp_path_factory.mktemp("profile"))
    yield opened
    opened.close()


@pytest.fixture(scope="module")
def page(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The page of a dataset with all sections."""
    path = tmp_path_factory.mktemp("page") / "page.html"
    findings, dataset = shardflow.verify(packed), shardflow.open(packed)
    augmented = augment_sample(training_loader(packed, "train"), 5, epochs=3)
    write_page(dataset, path, split="train", count=12, findings=findings, augmented=augmented)
    return path


@pytest.fixture(scope="module")
def pages(browser: Browser, page: Path) -> dict[tuple[int, bool], Rendered]:
    """What the page looks like by width, and whether it is dark."""
    screens = itertools.product(WIDTHS, (False, True))
    return {screen: browser.render(page, width=screen[0], dark=screen[1], evaluate=EVALUATED) for screen in screens}


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_page_fits_the_screen_and_asks_for_nothing(
    pages: dict[tuple[int, bool], Rendered], page: Path, width: int, dark: bool
) -> None:
    """On any screen nothing overflows, nothing is fetched, the console is empty, every image loads and has a text."""
    rendered = pages[width, dark]
    assert rendered.values["overflow"] <= 0
    assert [url for url in rendered.requests if not url.startswith("data:")] == [page.as_uri()]
    assert rendered.console == []
    assert rendered.values["images"] == 12 + 4 + 1
    assert rendered.values["broken"] == 0
    assert rendered.values["headings"][1:] == [
        *(
            "Samples: 12 of 36",
            "Sample 5 of train, from train/bridge/03.jpg",
            "Classes",
            "Sizes",
            "Bytes per image",
            "Mixing",
            "Recipe",
        ),
        *("Verification", "Quarantine", "Identity"),
    ]
    assert all(role == "img" and label for role, label in rendered.values["charts"])


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_page_can_be_read(pages: dict[tuple[int, bool], Rendered], dark: bool) -> None:
    """All text has a contrast of 4.5 to 1 or more (WCAG 2.1, AA); in dark mode the background is dark."""
    rendered = pages[1400, dark]
    assert (luminance(rendered.values["paper"]) < 0.1) == dark
    worst = min(contrast(ink, ground) for ink, ground in rendered.values["inks"])
    assert worst >= 4.5
    with Image.open(io.BytesIO(rendered.picture)) as picture:
        corner = np.asarray(picture.convert("RGB"))[:5, :5]
    assert (corner.mean() < 60) == dark


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_is_accessible(browser: Browser, page: Path, width: int, dark: bool) -> None:
    """axe-core finds no violation, with the dialog closed and open; it finds a button without a name."""
    browser.render(page, width=width, dark=dark, evaluate={})
    assert violations(browser) == []
    browser.evaluate("document.querySelector('#grid button').click()")
    assert browser.evaluate("document.querySelector('dialog').open")
    assert violations(browser) == []
    browser.evaluate("document.querySelector('#next').textContent = ''")
    assert violations(browser) == ["button-name"]


def violations(browser: Browser) -> list[str]:
    """Return the names of axe-core's rules that the page in the browser violates."""
    axe = Path(sys.prefix) / "npm/node_modules/axe-core/axe.min.js"
    browser.evaluate(axe.read_text(encoding="utf-8"))
    found: list[str] = browser.evaluate("axe.run().then(found => found.violations.map(each => each.id))")
    return found


def test_broken_pages_are_noticed(browser: Browser, tmp_path: Path) -> None:
    """A page that overflows, fetches, logs errors and shows no image is detected: the tests above can fail."""
    bad = tmp_path / "bad.html"
    bad.write_text(
        '<div style="width:900px">x</div><img src="http://127.0.0.1:9/x.png"><script>console.error(1)</script>'
    )
    rendered = browser.render(bad, width=390, dark=False, evaluate=EVALUATED)
    assert rendered.values["overflow"] > 400
    assert "http://127.0.0.1:9/x.png" in rendered.requests
    assert rendered.console
    assert rendered.values["broken"] == 1


def test_page_says_what_the_dataset_is(packed: Path, page: Path) -> None:
    """Counts, sizes before and after, recipe, verification, quarantine and fingerprint are in it."""
    html, dataset = page.read_text(), shardflow.open(packed)
    text = re.sub(r"<[^>]+>", " ", re.sub(r"<style>.*</style>", "", html, flags=re.DOTALL))
    counted = (dataset.manifest.statistics or {})["train"].counts
    for expected in (
        dataset.fingerprint,
        "No damage: every shard",
        *("3 of 39 inputs not packed", "the file is empty", "before: 144 to 248"),
        *(f"{round(counted[name] / 36):,}" for name in ("bytes_before", "bytes_after")),
        *("short side", "A batch of 9 contains samples of", shardflow.__version__),
    ):
        assert expected in text, expected
    assert html.count("<script") == 2  # the samples, and what shows them
    assert "cat & <dog>" not in html
    assert "cat &amp; &lt;dog&gt;" in html
    assert CLASSES[1] in dataset.classes  # type: ignore[operator]


def test_page_of_a_bare_dataset(tmp_path: Path) -> None:
    """The page of a damaged dataset without labels, statistics or a quarantine says what is missing."""
    url = make_dataset(tmp_path / "set", [30, 30], labelled=False)
    for shard, place in (("000000", slice(700, 710)), ("000001", slice(-4000, -1500))):
        tar = url / f"train/{shard}.tar"
        data = bytearray(tar.read_bytes())
        data[place] = bytes(len(data[place]))
        tar.write_bytes(data)
    findings = shardflow.verify(url)
    assert findings
    path = tmp_path / "page.html"
    write_page(shardflow.open(url), path, split="train", count=6, findings=findings)
    html = path.read_text()
    for expected in ("The samples have no labels", f"{len(findings)} findings", "every input was", "needs labels"):
        assert expected in html, expected
    assert "train/000000.tar, sample 000000000" in html
    assert len(samples_of(path)) == 6


def samples_of(page: Path) -> list[dict[str, Any]]:
    """The samples that a page holds as data."""
    data = page.read_text().partition('<script type="application/json" id="samples">')[2].partition("</script>")[0]
    samples: list[dict[str, Any]] = json.loads(data)["samples"]
    return samples


GRID = "[...document.querySelectorAll('#grid button .name')].map(each => each.textContent)"
CHOOSE = "(control, value) => { control.value = value; control.dispatchEvent(new Event('input')) }"


def choose(browser: Browser, control: str, value: str) -> list[str]:
    """Set a control of the gallery; return the titles of the samples that are drawn, after the number found."""
    browser.evaluate(f"({CHOOSE})(document.getElementById({control!r}), {value!r})")
    return [browser.evaluate("document.getElementById('found').textContent"), *browser.evaluate(GRID)]


def gallery_page(path: Path, tiles: Sequence[Tile]) -> Path:
    """Write a page with a gallery alone."""
    path.write_text(page_of("Many", section("Samples", gallery("train", tiles, len(tiles)))))
    return path


def test_ten_thousand_samples_are_filtered_and_sorted(browser: Browser, tmp_path: Path) -> None:
    """Few of them are drawn at a time, more on demand, and every one is found by number, key, class or size."""
    picture = Image.new("RGB", (8, 8), "teal")
    tiles = []
    for n in range(10_000):
        name = f"class{n % 10}"
        problem, size = "torn" * (n == 77), (n % 100 + 1, 9)
        tiles.append(Tile(f"{n}: {name}", "", picture.copy(), problem, n, f"k{n:05}", [name], size, 9999 - n))
    path = gallery_page(tmp_path / "many.html", tiles)
    assert path.stat().st_size < 20_000_000
    browser.render(path, width=1400, dark=False, evaluate={})
    found, *drawn = choose(browser, "text", "")
    assert (found, drawn[:2], len(drawn)) == ("10,000 of 10,000 samples", ["0: class0", "1: class1"], 60)
    browser.evaluate("document.getElementById('more').click()")
    assert len(browser.evaluate(GRID)) == 120
    assert choose(browser, "text", "K04321") == ["1 of 10,000 samples", "4321: class1"]
    assert choose(browser, "text", "class3 k0000") == ["1 of 10,000 samples", "3: class3"]
    choose(browser, "text", "")
    assert choose(browser, "class", "=class7")[:3] == ["1,000 of 10,000 samples", "7: class7", "17: class7"]
    assert choose(browser, "order", "-bytes")[1:3] == ["9997: class7", "9987: class7"]
    assert choose(browser, "order", "pixels")[1:3] == ["97: class7", "197: class7"]
    assert choose(browser, "class", "!") == ["1 of 10,000 samples", "77: class7"]
    assert browser.evaluate("document.getElementById('more').hidden")
    assert choose(browser, "text", "nothing") == ["0 of 10,000 samples"]


def test_the_gallery_is_used_by_keys(browser: Browser, page: Path) -> None:
    """Arrows move the focus, Enter enlarges, arrows turn over, Escape closes, and the focus is where one was."""
    focus = "document.activeElement.textContent"
    browser.render(page, width=1400, dark=False, evaluate={})
    browser.evaluate("document.getElementById('order').focus()")
    numbers = [sample["number"] for sample in samples_of(page)]
    browser.press("Tab")
    assert browser.evaluate(focus).startswith(f"{numbers[0]}: ")
    browser.press("ArrowRight", "ArrowRight", "ArrowLeft")
    assert browser.evaluate(focus).startswith(f"{numbers[1]}: ")
    browser.press("ArrowDown", "Home", "End")
    assert browser.evaluate(focus).startswith(f"{numbers[-1]}: ")
    browser.press("Home", "Enter")
    assert browser.evaluate("document.getElementById('large').open")
    browser.press("ArrowRight")
    assert browser.evaluate("document.getElementById('large-title').innerText") == f"Sample {numbers[1]} of train"
    assert browser.evaluate("document.getElementById('large-code').innerText") == f'dataset["train"][{numbers[1]}]'
    browser.press("Escape")
    assert not browser.evaluate("document.getElementById('large').open")
    # The dialog's event comes a little after the key.
    assert any(browser.evaluate(focus).startswith(f"{numbers[1]}: ") for _ in range(500))


@pytest.mark.parametrize("width", WIDTHS)
def test_captions_are_cut_found_and_whole_in_the_enlarged_view(browser: Browser, tmp_path: Path, width: int) -> None:
    """A tile has one line of a caption, the enlarged view all of it, and the filter finds a word at its end."""
    caption = f"a dog\non {'a very ' * 60}Long beach"
    tiles = [Tile(f"{n}: x", "", None, "", n, "k", caption=text) for n, text in enumerate(("", caption))]
    tiles.append(Tile("2: x", "", None, "", 2, "k", source="sea/7.jpg"))
    path = gallery_page(tmp_path / "captions.html", tiles)
    path.write_text(path.read_text() + markup.sheet(tiles))
    overflow = {"overflow": EVALUATED["overflow"]}
    assert browser.render(path, width=width, dark=False, evaluate=overflow).values["overflow"] <= 0
    assert choose(browser, "text", "sea/7") == ["1 of 3 samples", "2: x"]
    assert browser.evaluate("document.querySelector('#grid .caption').textContent") == "sea/7.jpg"
    assert choose(browser, "text", "long beach") == ["1 of 3 samples", "1: x"]
    texts = "[...document.querySelectorAll('.caption')].map(each => [each.textContent, each.clientHeight < 30])"
    assert browser.evaluate(texts) == [[caption, True]] * 2
    browser.evaluate("document.querySelector('#grid button').click()")
    assert caption in browser.evaluate("document.getElementById('large-facts').innerText")


def test_text_of_samples_is_only_text(browser: Browser, tmp_path: Path) -> None:
    """No class, key, caption or problem ends the script element, or becomes an element."""
    hostile = "</script><script>window.ran=1</script><!--<script><img src=x onerror=window.ran=1>"
    tile = Tile(
        f"0: {hostile}", hostile, None, hostile, 0, f"{hostile}\u2028\ud800", [hostile], (1, 1), 1, *[hostile] * 2
    )
    path = gallery_page(tmp_path / "hostile.html", [tile])
    rendered = browser.render(path, width=390, dark=False, evaluate={})
    browser.evaluate("document.querySelector('#grid button').click()")
    assert choose(browser, "class", f"={hostile}")[1:] == [f"0: {hostile}"]
    assert browser.evaluate("window.ran") is None
    assert browser.evaluate("document.images.length") == 0
    assert rendered.console == []
    assert "<script" not in markup.sheet([tile])


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
