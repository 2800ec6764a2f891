"""Datasets in stores other than S3: packed, extended, copied and streamed there, or refused."""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import shardflow as sf
from shardflow.errors import ConfigError
from tests.helpers.folders import contents, image_folder
from tests.helpers.making import make_dataset
from tests.helpers.s3_proxy import Fault, proxying
from tests.helpers.store import Store
from tests.helpers.web_server import TOKEN, Folder

SETTINGS: dict[str, Any] = {"shard_samples": 5, "short_side": 32, "workers": 1}
SERIAL: dict[str, Any] = {"shard_samples": 5, "short_side": 32, "executor": "serial"}
SIZES = [20, 9, 31, 16]


@pytest.fixture(params=["gcs", "azure"])
def bucket(request: pytest.FixtureRequest) -> Store:
    """Each store that can be written to."""
    store: Store = request.getfixturevalue(request.param)
    return store


def test_a_pack_and_its_extension_are_those_of_a_disk(bucket: Store, prefix: str, tmp_path: Path) -> None:
    """What is packed into a store through faults, and then extended, has the bytes of the same on a disk."""
    first, second = image_folder(tmp_path / "first", 20), image_folder(tmp_path / "second", 30)
    with proxying(bucket.endpoint) as proxy:
        options, url = bucket.options(proxy.endpoint), bucket.url(prefix)
        proxy.add(Fault(status=503), times=2, first=3)
        proxy.add(Fault(reset=True, reaches_server=True), contains="shardflow.json", method="P", times=1)
        sf.pack(first, url, **SETTINGS, storage_options=options)
        sf.pack(first, tmp_path / "dst", **SETTINGS)
        assert bucket.contents(prefix) == contents(tmp_path / "dst")
        sf.extend(second, url, workers=1, storage_options=options)
    sf.extend(second, tmp_path / "dst", workers=1)
    assert bucket.contents(prefix) == contents(tmp_path / "dst")
    assert sf.verify(url, storage_options=bucket.options()) == []


@pytest.fixture(scope="module")
def local(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A labelled dataset in four uneven shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", SIZES)


def test_columns_are_those_of_a_disk(bucket: Store, prefix: str, local: Path, tmp_path: Path) -> None:
    """Columns that are added, replaced and dropped in a store, the kept versions included, have the bytes of a disk."""
    sf.sync(local, tmp_path / "set")
    sf.sync(local, bucket.url(prefix), dst_options=bucket.options())
    keys = [sample["__key__"] for sample in sf.open(local)["train"]]
    for url, options in ((str(tmp_path / "set"), None), (bucket.url(prefix), bucket.options())):
        for factor in (1, 2):
            table = pa.table({"key": keys, "score": [factor * number for number in range(len(keys))]})
            sf.columns.add(url, table, key="key", replace=factor == 2, storage_options=options)
        assert sf.open(url, storage_options=options)["train"].column("score").values[3] == 6
        sf.columns.drop(url, ["score"], storage_options=options)
    assert bucket.contents(prefix) == contents(tmp_path / "set")


@pytest.fixture(params=["gcs", "azure", "web", "web without ranges", "the_hub"])
def place(request: pytest.FixtureRequest, prefix: str, local: Path) -> Any:
    """The dataset in each kind of store: its URL and storage_options."""
    if request.param in ("gcs", "azure"):
        store: Store = request.getfixturevalue(request.param)
        sf.sync(local, store.url(prefix), dst_options=store.options())
        yield store.url(prefix), store.options()
        return
    store, folder = request.getfixturevalue(request.param.partition(" ")[0])
    shutil.copytree(local, folder.root / prefix)
    folder.ranges, folder.busy = not request.param.endswith("without ranges"), 2
    yield store.url(prefix), store.options()
    folder.ranges, folder.busy = True, 0


def test_batches_are_those_of_the_directory(place: tuple[str, Any], local: Path, tmp_path: Path) -> None:
    """From each store come the batches that come from the directory, also after a resume; and so does a copy."""
    url, options = place

    def batches(where: str | Path, state: Any = None, **more: Any) -> Any:
        shuffle = sf.Shuffle(buffer=16, streams=2)
        decoder = sf.decoders.RandomResizedCrop(12)
        loader = sf.Loader(where, batch_size=7, num_workers=2, tail="short", shuffle=shuffle, decoder=decoder, **more)
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        return loader

    def values(some: Any) -> list[tuple[bytes, list[int]]]:
        return [(images.numpy().tobytes(), labels.tolist()) for images, labels in some]

    expected = values(batches(local))
    stopped = batches(url, storage_options=options, cache=tmp_path / "cache")
    before = values(itertools.islice(stopped, 4))
    rest = values(batches(url, stopped.state_dict(), storage_options=options, cache=tmp_path / "cache"))
    assert before + rest == expected
    if not url.startswith("http"):  # a web server has no listing with sizes
        sf.sync(url, tmp_path / "copy", src_options=options)
        assert contents(tmp_path / "copy") == contents(local)


WRITES: dict[str, Callable[[Path, Path, str], object]] = {
    "pack": lambda missing, _, url: sf.pack(missing, url),
    "extend": lambda missing, _, url: sf.extend(missing, url),
    "sync": lambda _, local, url: sf.sync(local, url),
    "index": lambda *places: sf.index("http://127.0.0.1:1/tars/{000000..000003}.tar", to=places[2]),
    "subset": lambda _, local, url: sf.subset(local, url, fraction=0.5),
}


@pytest.mark.parametrize("write", WRITES)
def test_what_can_only_be_read_is_refused_at_the_start(write: str, local: Path, tmp_path: Path) -> None:
    """A web server and the Hub are refused as destinations before an input is read or a request is made."""
    for url in ("http://127.0.0.1:1/set", "https://example.invalid/set", "hf://datasets/someone/photos"):
        with pytest.raises(ConfigError, match=r"can be read, but not written; write to a disk"):
            WRITES[write](tmp_path / "missing", local, url)


def test_the_token_stays_at_the_hub(the_hub: tuple[Store, Folder], prefix: str, local: Path, tmp_path: Path) -> None:
    """The host to which the Hub redirects does not get the token, and no message shows it."""
    store, folder = the_hub
    shutil.copytree(local, folder.root / prefix)
    folder.seen.clear()
    sf.sync(store.url(prefix), tmp_path / "copy", src_options=store.options())
    redirected = [sent for _, path, sent in folder.seen if path.startswith("/files/")]
    assert redirected
    assert set(redirected) == {None}
    with pytest.raises(sf.errors.NotFoundError) as caught:
        sf.open(store.url("nothing"), storage_options=store.options())
    assert TOKEN not in "".join(map(str, (caught.value, caught.value.__cause__)))


def test_a_container_stands_before_the_account(azure: Store, prefix: str, tmp_path: Path) -> None:
    """With abfss://CONTAINER@ACCOUNT/ a virtual dataset finds its tars, from a bucket and from a disk."""
    source, options = image_folder(tmp_path / "src", 9), azure.options()
    place = f"abfss://tests@devstoreaccount1.dfs.core.windows.net/{prefix}"
    sf.pack(source, f"{place}/set", **SERIAL, storage_options=options)
    sf.split(f"{place}/set", f"{place}/view", val=0.5, src_options=options, dst_options=options)
    sf.split(f"{place}/set", tmp_path / "view", val=0.5, src_options=options)
    assert sf.open(tmp_path / "view", storage_options=options).manifest.roots["0"].url == f"{place}/set"
    for view in (f"{place}/view", str(tmp_path / "view")):
        dataset = sf.open(view, storage_options=options, cache=tmp_path / "cache")
        assert sum(len(sample["jpg"]) > 0 for split in dataset.values() for sample in split) == 9
    report = sf.pack(sf.sources.Shards(f"{place}/view", storage_options=options), tmp_path / "packed", **SERIAL)
    assert report.packed == 9


def test_sources_on_the_hub(the_hub: tuple[Store, Folder], prefix: str, tmp_path: Path) -> None:
    """A folder on the Hub, and a table there with names and URLs, are packed as from a disk."""
    store, folder = the_hub
    images = image_folder(folder.root / prefix, 3)
    (images / "t.csv").write_text(f"path\na/0000.jpg\n{store.url(prefix)}/b/0001.jpg\n")
    far = sf.sources.Folder(store.url(prefix), storage_options=store.options())
    assert sf.pack(far, tmp_path / "far", **SERIAL).packed == 3
    table = sf.sources.Table(f"{store.url(prefix)}/t.csv", storage_options=store.options())
    assert sf.pack(table, tmp_path / "table", **SERIAL).packed == 2
    sf.pack(images, tmp_path / "near", **SERIAL)
    tars = [sorted((tmp_path / name / "train").glob("*.tar")) for name in ("far", "near")]
    assert [path.read_bytes() for path in tars[0]] == [path.read_bytes() for path in tars[1]]
