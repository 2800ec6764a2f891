from __future__ import annotations

import http.server
import inspect
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import shardflow
from tests.helpers.browser import Browser, executable
from tests.helpers.pages import PAGES, PROJECT

FIND = """new Promise(found => {
    const input = document.querySelector(".md-search__input")
    input.focus()
    input.value = "MixUp"
    input.dispatchEvent(new Event("keyup"))
    const links = () => [...document.querySelectorAll(".md-search-result__link")].map(link => link.href)
    const look = left => links().length || !left ? found(links()) : setTimeout(look, 50, left - 1)
    look(400)
})"""
"""Type a name into the search, and return the addresses of the results: of none after 20 seconds."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The website, built with warnings as errors."""
    pages, folder = tmp_path_factory.mktemp("pages") / "pages", tmp_path_factory.mktemp("site")
    command = ["mkdocs", "build", "--strict", "--config-file", pages / "mkdocs.yml", "--site-dir", folder]
    settings = {"NO_MKDOCS_2_WARNING": "1", "PYTHONPATH": str(PROJECT)}
    for arguments in ([PROJECT / "tools/site/pages.py", pages], ["-m", *command]):
        done = subprocess.run(
            [sys.executable, *arguments],
            env={**os.environ, **settings},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


@pytest.fixture(scope="module")
def address(site: Path) -> Iterator[str]:
    """The URL of the website, on a server of its own."""

    class Handler(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Keep quiet."""

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), partial(Handler, directory=site)) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_all_pages_and_public_names_are_there(site: Path) -> None:
    """The navigation has every page of docs/, and the reference every public name with its description."""
    front = (site / "index.html").read_text(encoding="utf-8")
    for page in PAGES:
        if page.startswith("docs/"):
            assert f'href="{Path(page).stem}.html"' in front, f"{page} is not in the nav of tools/site/mkdocs.yml"
    reference = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    described = re.findall(r'<h2 id="[\w.]+" class="doc doc-heading">\s*(shardflow\.[\w.]+)', reference)
    modules = {name: value for name in shardflow.__all__ if inspect.ismodule(value := getattr(shardflow, name))}
    del modules["errors"]  # a page of its own
    public = [f"shardflow.{name}" for name in shardflow.__all__ if name not in (*modules, "errors")]
    public += [f"shardflow.{name}.{each}" for name, module in modules.items() for each in module.__all__]
    assert sorted(described) == sorted(public)
    index = json.loads((site / "search/search_index.json").read_text(encoding="utf-8"))
    assert any("reference/decoders.html" in entry["location"] for entry in index["docs"])
    for path in site.rglob("*.html"):
        assert "```" not in path.read_text(encoding="utf-8"), f"{path.name} shows a fence"


@pytest.mark.skipif(executable() is None, reason="no Chromium")
def test_pages_in_a_browser(address: str, tmp_path: Path) -> None:
    """Pages need nothing from elsewhere and fit narrow and wide windows, light and dark; the search finds a name."""
    browser = Browser(tmp_path)
    evaluate = {
        "beyond": "document.documentElement.scrollWidth - innerWidth",
        "scheme": "document.body.getAttribute('data-md-color-scheme')",
        "search": "document.querySelectorAll('.md-search__input').length",
    }
    try:
        for page in ("index", "packing", "format", "reference/loading", "examples/train_ddp"):
            for width, dark in ((1280, False), (400, True)):
                shown = browser.render(f"{address}/{page}.html", width=width, dark=dark, evaluate=evaluate)
                assert shown.values["beyond"] <= 0, f"{page} is wider than {width} pixels"
                assert shown.values["scheme"] == ("slate" if dark else "default")
                assert shown.values["search"] == 1
                assert [url for url in shown.requests if not url.startswith((address, "data:", "blob:"))] == []
                assert shown.console == []
        assert any(url.startswith(f"{address}/reference/device.html") for url in browser.evaluate(FIND))
    finally:
        browser.close()
