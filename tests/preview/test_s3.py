"""The preview of a dataset in a bucket."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

import shardflow
from shardflow.cli.preview import preview
from shardflow.preview.augmentation import augment_sample
from shardflow.preview.sample_reader import SampleReader
from tests.helpers.making import make_dataset
from tests.helpers.s3_proxy import Proxy
from tests.helpers.s3_server import Server


def test_no_whole_shard_is_fetched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, server: Server, proxy: Proxy, prefix: str
) -> None:
    """Sheet, page and augmentation read the manifest, indexes and the ranges of the right samples."""
    local = make_dataset(tmp_path / "set", [200, 200, 200])
    shardflow.sync(local, server.url(prefix), dst_options=server.options())
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home"))
    for name, value in {**server.environment(), "AWS_ENDPOINT_URL": proxy.endpoint}.items():
        monkeypatch.setenv(name, value)
    samples = list(SampleReader(shardflow.open(server.url(prefix)), "train").samples([0, 250, 599]))
    assert [sample.image for sample in samples] == [shardflow.open(local)["train"][n]["jpg"] for n in (0, 250, 599)]
    arguments = [server.url(prefix), "--html", str(tmp_path / "page.html"), "--output", str(tmp_path / "sheet.png")]
    result = CliRunner().invoke(preview, [*arguments, "--count", "6"], catch_exceptions=False)
    assert result.exit_code == 0
    assert (tmp_path / "page.html").read_text().count('"number":') == 6
    loader = shardflow.Loader(server.url(prefix), batch_size=4, num_workers=0)
    assert len(augment_sample(loader, 250, epochs=2).tiles) == 3
    ranges = [requested for _, target, requested in proxy.log if ".tar" in target]
    assert ranges
    for extent in ranges:
        first, last = map(int, extent.removeprefix("bytes=").split("-"))
        assert last - first < 5000
