from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

import shardflow as sf
from shardflow._cores import allowed_cores
from shardflow.dataset import unpacked
from shardflow.errors import ConfigError, NotFoundError
from shardflow.formats import quarantine
from shardflow.storage.local import LocalStorage
from tests.helpers.command import run
from tests.helpers.folders import image_folder, write_tree
from tests.helpers.making import make_dataset
from tests.helpers.s3_server import Server
from tests.helpers.store import Store
from tests.helpers.web_server import Folder


def refusal(url: object, **options: object) -> str:
    """Return the message of a loader of a place without a dataset."""
    with pytest.raises(NotFoundError) as caught:
        sf.Loader(url, batch_size=2, **options)  # type: ignore[arg-type]
    return str(caught.value)


def command_of(message: str) -> list[str]:
    """Return the words of the command in a message."""
    found = re.search(r"`(shardflow [^`]+)`", message)
    assert found, message
    return shlex.split(found[1])[1:]


def test_images_are_packed_by_the_line(tmp_path: Path) -> None:
    """The line about a folder of images names their number and size and a time, and makes a dataset when it is run."""
    source = image_folder(tmp_path / "my photos", 6)
    message = refusal(f"{source}/")
    assert "6 images" in message
    assert re.search(rf"about \d+ s on {allowed_cores()} core", message)
    assert run(*command_of(message), "--executor", "serial").returncode == 0
    assert len(sf.open(command_of(message)[2])["train"]) == 6


def test_tars_are_indexed_by_the_line(tmp_path: Path) -> None:
    """The line about tars makes a dataset over them when it is run."""
    made = make_dataset(tmp_path / "set", [3, 2])
    tars = write_tree(tmp_path / "tars", {path.name: path.read_bytes() for path in (made / "train").glob("*.tar")})
    message = refusal(tars)
    assert "2 tars" in message
    indexed = run(*command_of(message), cwd=tmp_path)
    assert indexed.returncode == 0, indexed.stderr
    assert len(sf.open(tmp_path / command_of(message)[-1])["train"]) == 5


def test_a_folder_of_datasets(tmp_path: Path) -> None:
    """A folder that holds datasets, as folds do, is said to, with one of them; a name that is nearly right as well."""
    for number in (1, 0):
        make_dataset(tmp_path / "folds" / f"fold{number}", [2])
    assert refusal(tmp_path / "folds").endswith(f"it has 2 datasets: name one, such as {tmp_path}/folds/fold0")
    assert refusal(tmp_path / "folds" / "folds").endswith(f"did you mean {tmp_path}/folds/fold1?")
    with pytest.raises(ConfigError, match=r"no split 'tain'.*did you mean 'train'"):
        sf.Loader(tmp_path / "folds" / "fold0", split="tain", batch_size=1)


def test_a_bucket_is_listed_within_bounds(
    server: Server, prefix: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same line about a prefix of a bucket, of which a few pages are listed at most."""
    url = server.put(prefix, image_folder(tmp_path / "src", 9))
    message = refusal(f"{url}/", storage_options=server.options())
    assert "9 images" in message
    assert command_of(message) == ["pack", url, f"{url}-256"]
    monkeypatch.setattr(unpacked, "_LISTED", 5)
    assert "at least" in refusal(url, storage_options=server.options())
    assert len(server.storage(prefix).listing(most=1)) < 10
    assert len(LocalStorage(tmp_path / "src").listing(most=4)) == 4


def test_no_line_where_none_would_help(tmp_path: Path, web: tuple[Store, Folder]) -> None:
    """Neither an unfinished pack, nor a folder without images, nor a web server gets such a line."""
    begun = image_folder(tmp_path / "begun", 2)
    (begun / quarantine.FILE_NAME).touch()
    empty = write_tree(tmp_path / "empty", {"a.txt": b""})
    store, folder = web
    image_folder(folder.root / "photos", 2)
    for message in (refusal(begun), refusal(empty), refusal(store.url("photos"), storage_options=store.options())):
        assert "images" not in message
