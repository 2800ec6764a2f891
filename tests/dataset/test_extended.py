"""Keys that stand only in extended tar headers, for every reader of keys."""

from __future__ import annotations

import functools
import shutil
import tarfile
import threading
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds
from click.testing import CliRunner

import shardflow as sf
from shardflow.cli.main import shardflow as cli
from shardflow.dataset.open_dataset import Split
from shardflow.errors import IntegrityError
from shardflow.preview.sample_reader import SampleReader
from shardflow.storage.cache import Cache
from tests.helpers.command import run
from tests.helpers.counting import SlowStorage
from tests.helpers.making import flip, jpeg
from tests.helpers.tars import write_tar

KEYS = ["plain", "long" + "x" * 120, "ünï/cödé", "folder/" * 30 + "deep", "y" * 99 + "ü", "z" * 96]
FORMATS = {"gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}
WRITERS = [*FORMATS, "webdataset"]


@functools.cache
def members() -> list[tuple[str, bytes]]:
    """Return the members of samples with KEYS; of the last one, only one name is too long for a plain header."""
    parts = [[("cls", b"%d" % n), ("jpg", jpeg(n)), ("note.txt", b"note %d" % n)] for n in range(len(KEYS))]
    return [(f"{key}.{part}", payload) for key, files in zip(KEYS, parts, strict=True) for part, payload in files]


@pytest.fixture(params=WRITERS)
def tar(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    """A tar in each format and of each writer."""
    path = tmp_path / "tars/00.tar"
    if request.param != "webdataset":
        return write_tar(path, members(), kind=FORMATS[request.param])
    path.parent.mkdir()
    with wds.TarWriter(str(path)) as writer:
        for n, key in enumerate(KEYS):
            writer.write({"__key__": key, "cls": n, "jpg": jpeg(n), "note.txt": b"note %d" % n})
    return path


@pytest.fixture
def virtual(tar: Path, tmp_path: Path) -> Path:
    """The virtual dataset that `index` makes of the tar."""
    report = sf.index(tar, tmp_path / "virtual")
    assert (report.samples, report.bad) == ({"train": len(KEYS)}, ())
    return tmp_path / "virtual"


def keys(url: Path) -> list[str]:
    """Verify a dataset, and return the keys of all samples."""
    assert sf.verify(url) == []
    return [str(sample["__key__"]) for split in sf.open(url).values() for sample in split]


def test_every_reader_finds_the_keys(virtual: Path) -> None:
    """Random access, the loader, the sample stream, the preview and the verification read the same keys and parts."""
    assert keys(virtual) == KEYS
    train = sf.open(virtual)["train"]
    assert [{part for part in sample if part[0] != "_"} for sample in train] == [{"cls", "jpg", "note.txt"}] * len(KEYS)
    loader = sf.Loader(virtual, batch_size=2, fields=("image", "label", "key"), num_workers=0)
    seen = {key: label for _, labels, texts in loader for label, key in zip(labels.tolist(), texts, strict=True)}
    assert seen == {key: number for number, key in enumerate(KEYS)}
    assert {sample["__key__"] for sample in sf.samples(virtual, seed=0)} == {*KEYS}
    samples = list(SampleReader(sf.open(virtual), "train").samples(range(len(KEYS))))
    assert [(sample.key, sample.image, sample.problem) for sample in samples] == [
        (key, jpeg(number), "") for number, key in enumerate(KEYS)
    ]


def test_virtual_datasets_of_virtual_datasets_keep_the_keys(virtual: Path, tmp_path: Path) -> None:
    """Subset by key, split, merge, sync, pack and preview find the samples."""
    sf.subset(virtual, tmp_path / "few", keys=[KEYS[1], KEYS[5]])
    assert keys(tmp_path / "few") == [KEYS[1], KEYS[5]]
    sf.split(virtual, tmp_path / "parted", val=0.5)
    assert sorted(keys(tmp_path / "parted")) == sorted(KEYS)
    sf.subset(virtual, tmp_path / "others", keys=[KEYS[2], KEYS[1], KEYS[0]])
    sf.merge([tmp_path / "few", tmp_path / "others"], tmp_path / "merged")
    assert keys(tmp_path / "merged") == [KEYS[0], KEYS[1], KEYS[2], KEYS[5]]
    assert sf.merge([tmp_path / "others", tmp_path / "few"], tmp_path / "again").fingerprint == (
        sf.open(tmp_path / "merged").fingerprint
    )
    sf.sync(virtual, tmp_path / "copy")
    assert keys(tmp_path / "copy") == KEYS
    assert sf.diff(tmp_path / "copy", virtual).same
    sf.pack(virtual, tmp_path / "packed", executor="serial")
    assert sorted(bytes(sample["note.txt"]) for sample in sf.open(tmp_path / "packed")["train"]) == [
        payload for name, payload in members() if name.endswith(".txt")
    ]
    outputs = ["--output", str(tmp_path / "sheet.png"), "--html", str(tmp_path / "page.html")]
    assert CliRunner().invoke(cli, ["preview", str(virtual), *outputs], catch_exceptions=False).exit_code == 0
    assert (tmp_path / "page.html").read_text().count('"number":') == len(KEYS)


def test_partial_shard_has_the_keys(tar: Path, virtual: Path, tmp_path: Path) -> None:
    """Samples are read with their keys while the rest of a tar is still being downloaded."""
    (line,) = sf.open(virtual)["train"].shards
    shutil.copy(tar, virtual / line.name)  # beside its index, where the store below has it
    storage = SlowStorage(virtual, tmp_path / "log")
    storage.first_bytes = line.bytes - 20_000
    split = Split(storage, "train", (line,), Cache(tmp_path / "cache"))
    thread = threading.Thread(target=split.reader.fetch, args=(0,))
    thread.start()
    try:
        assert storage.begun.wait(10)
        for number in range(3):
            sample = split.reader.read(0, number, sequential=True)
            assert sample.key == KEYS[number]
            assert bytes(sample.parts["jpg"]) == jpeg(number)
        assert not split.reader.is_local(0)
    finally:
        storage.go_on.set()
        thread.join()
    assert [split.reader.key(0, record) for record in range(len(split))] == KEYS


def test_a_damaged_key_is_reported(tar: Path, virtual: Path) -> None:
    """A flipped byte in an extended header is an IntegrityError for the key, and a finding."""
    flip(tar, tar.read_bytes().index(b"long" + b"x" * 120) + 50)
    reader = sf.open(virtual)["train"].reader
    with pytest.raises(IntegrityError, match=r"1:.*damaged"):
        reader.key(0, 1)
    assert reader.key(0, 2) == KEYS[2]
    assert [str(finding) for finding in sf.verify(virtual) if "name is damaged" in str(finding)]


def test_names_in_another_encoding_are_printed_escaped(tmp_path: Path) -> None:
    """The bytes of a name that are not UTF-8 are printed escaped, and it gets a line in the quarantine."""
    write_tar(tmp_path / "00.tar", [*members()[:3], ("\udcfc.jpg", jpeg(1))], kind=tarfile.GNU_FORMAT)
    environment = {"PYTHONIOENCODING": "utf-8:strict"}
    done = run("index", tmp_path, "--max-errors", 1, env=environment, text=False, check=True)
    assert b"00.tar/\\udcfc: its name is not UTF-8" in done.stdout
    assert sf.open(tmp_path).manifest.quarantined == 1


def test_extended_headers_beside_plain_names(tmp_path: Path) -> None:
    """An extended header without a name is skipped: the plain header has the name."""
    sf.index(write_tar(tmp_path / "a.tar", members()[:3], mtime=1.5), tmp_path / "virtual")
    (shard,) = sf.open(tmp_path / "virtual")["train"].shards
    assert np.load(tmp_path / "virtual" / shard.index_name)["part"].tolist() == [b"cls", b"jpg", b"note.txt"]
