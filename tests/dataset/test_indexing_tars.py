from __future__ import annotations

import functools
import http.server
import json
import os
import tarfile
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset as wds

import shardflow as sf
from shardflow.dataset import indexing_tars
from shardflow.errors import AccessDeniedError, ConfigError, DatasetExistsError, NotFoundError, PackIncompleteError
from shardflow.preview.sample_reader import SampleReader
from tests.helpers.folders import contents, image_folder
from tests.helpers.making import jpeg, make_dataset
from tests.helpers.tars import members_of, plain_tar, write_tar


class Quiet(http.server.SimpleHTTPRequestHandler):
    """A web server without log lines."""

    def log_message(self, *_: object) -> None:
        """Write no log line."""


FORMATS = {"ustar": tarfile.USTAR_FORMAT, "gnu": tarfile.GNU_FORMAT, "pax": tarfile.PAX_FORMAT}


@pytest.mark.parametrize("kind", FORMATS)
def test_tars_of_any_format_are_read_in_place(tmp_path: Path, kind: str) -> None:
    """Tars of every format are indexed beside the tars, with all parts, labels and keys; the tars are not changed."""
    for number in range(3):
        write_tar(tmp_path / f"{number:05}.tar", members_of(range(4 * number, 4 * number + 4)), kind=FORMATS[kind])
    before = contents(tmp_path)
    report = sf.index(tmp_path)
    assert (report.samples, report.shards, report.bad) == ({"train": 12}, {"train": 3}, ())
    assert {name: data for name, data in contents(tmp_path).items() if name in before} == before
    dataset = sf.open(tmp_path)
    assert dataset.classes == ["0", "1", "2"]
    samples = list(dataset["train"])
    assert [sample["__key__"] for sample in samples] == [f"{n:05}" for n in range(12)]
    assert all(sample["jpg"] == jpeg(n) and json.loads(sample["json"]) == {"n": n} for n, sample in enumerate(samples))
    assert sf.verify(tmp_path) == []


def test_what_webdataset_writes_trains(tmp_path: Path) -> None:
    """Samples of webdataset's own writer, in folders for train and val, are yielded once each by the loader."""
    for split, numbers in (("train", range(9)), ("val", range(5))):
        (tmp_path / split).mkdir()
        with wds.TarWriter(str(tmp_path / split / "a.tar")) as writer:
            for n in numbers:
                writer.write({"__key__": f"{n}", "jpg": jpeg(n), "cls": n % 4, "txt": f"caption {n}"})
    report = sf.index(tmp_path, tmp_path / "virtual", classes=["a", "b", "c", "d"])
    assert report.samples == {"train": 9, "val": 5}
    assert sf.open(tmp_path / "virtual").classes == ["a", "b", "c", "d"]
    fields = ("label", "txt", "key")
    loader = sf.Loader(tmp_path / "virtual", batch_size=3, fields=fields, num_workers=0)
    rows = [row for labels, *texts in loader for row in zip(labels.tolist(), *texts, strict=True)]
    assert sorted(rows) == sorted((n % 4, f"caption {n}", f"{n}") for n in range(9))


LAYOUTS = {
    "below": (["ds/train/0.tar", "ds/val/a/0.tar"], "", {"train": 1, "val": 1}),
    "named": (["tars/Val/0.tar", "tars/Val/1.tar"], "tars/Val/*.tar", {"val": 2}),
    "folder": (["val/a/0.tar", "val/b/0.tar"], "val", {"val": 2}),
    "chosen": (["train/0.tar", "val/0.tar", "extra/0.tar"], "{train,val}/*.tar", {"train": 1, "val": 1}),
    "others": (["a/0.tar", "b/0.tar", "0.tar"], "**", {"train": 3}),
    "beside": (["train/0.tar", "val/0.tar", "more.tar"], "", ("train/0.tar", "more.tar")),
    "extra": (["train/0.tar", "val/0.tar", "extra/0.tar"], "**/*.tar", ("train/0.tar", "extra/0.tar")),
    "both": (["train/val/0.tar"], "", ("train/val/0.tar",)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_folders_give_splits(tmp_path: Path, layout: str) -> None:
    """Tars in folders named like splits belong to these; beside other tars they are refused. A pack agrees."""
    names, pattern, expected = LAYOUTS[layout]
    for number, name in enumerate(names):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write_tar(tmp_path / name, members_of([number]))
    url = f"{tmp_path}/{pattern}"
    for run in (sf.index, functools.partial(sf.pack, executor="serial")):
        if isinstance(expected, dict):
            assert run(url, tmp_path / run.__class__.__name__).samples == expected
        else:
            with pytest.raises(ConfigError) as refusal:
                run(url, tmp_path / "refused")
            assert all(name in str(refusal.value) for name in expected)


def test_unusable_samples_are_reported(tmp_path: Path) -> None:
    """Incomplete, torn, repeated, unreadable and unlabelled samples are reported with the reasons; the rest is kept."""
    write_tar(
        tmp_path / "a.tar",
        [
            *members_of([1]),
            *(("folder/", b""), ("__metadata__", b"x"), (".hidden.jpg", b"x"), ("folder/.x", b"x")),
            *(("noimage.txt", b"x"), ("noimage.cls", b"0")),
            *(again := [("again.jpg", jpeg(13)), ("again.cls", b"0")]),
            *(("torn.jpg", jpeg(2)), ("torn.cls", b"0"), *members_of([3]), ("torn.txt", b"x")),
            *again,
            *(("twice.jpg", jpeg(4)), ("twice.jpg", jpeg(5)), ("twice.cls", b"0")),
            *(("other\udcfc.jpg", jpeg(6)), ("other\udcfc.cls", b"0")),
            ("unlabelled.jpg", jpeg(8)),
            *(("named.jpg", jpeg(9)), ("named.cls", b"cat")),
            *(("UPPER.JPG", jpeg(10)), ("UPPER.CLS", b"1\n")),
            *(("parted.jpg", jpeg(11)), ("parted.cls", b"1")),
        ],
    )
    write_tar(tmp_path / "b.tar", [("parted.txt", b"x"), *members_of([12])])
    with pytest.raises(PackIncompleteError, match=r"9 samples .*0 allowed: .*--max-errors 9"):
        sf.index(tmp_path)
    assert not (tmp_path / "shardflow.json").exists()
    report = sf.index(tmp_path, max_errors=9)
    reasons = {bad.path.removeprefix(f"{tmp_path}/"): bad.reason for bad in report.bad}
    for path, reason in {
        "a.tar/noimage": "has no image among its parts: txt, cls",
        "a.tar/again": "comes twice",
        "a.tar/torn": "do not stand together",
        "a.tar/twice": "two parts 'jpg'",
        "a.tar/other\udcfc": "its name is not UTF-8",
        "a.tar/unlabelled": "has no label",
        "a.tar/named": r"label b'cat' is not a whole number",
        "a.tar/parted": "split between two tars",
        "b.tar/parted": "has no image",
    }.items():
        assert reason in reasons.pop(path)
    assert not reasons
    assert [sample["__key__"] for sample in sf.open(tmp_path)["train"]] == ["00001", "00003", "UPPER", "00012"]
    assert sf.open(tmp_path).manifest.quarantined == 9
    assert sf.open(tmp_path).quarantine() == list(report.bad)
    assert sf.verify(tmp_path) == []
    assert report.lost == 0


def test_images_that_do_not_begin_as_one(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Pages of errors that were saved as images are counted in a warning: an index decodes no image."""
    write_tar(tmp_path / "a.tar", [*members_of([1]), ("page.jpg", b"<html>403</html>"), ("page.cls", b"0")])
    sf.index(tmp_path)
    assert "1 sample without an image" in caplog.text
    assert f"{tmp_path}/a.tar/page" in caplog.text


def test_samples_behind_damage_are_counted(tmp_path: Path) -> None:
    """A damaged tar is one entry for all samples behind the damage; about how many these are is said beside it."""
    tar = bytearray(plain_tar((f"{n:03}.jpg", jpeg(1)) for n in range(20)))
    tar[len(tar) // 4 : len(tar) // 4 + 4096] = bytes([7]) * 4096
    (tmp_path / "a.tar").write_bytes(tar)
    with pytest.raises(PackIncompleteError, match=r"2 samples cannot be used, .*about 1\d samples.* --max-errors 2"):
        sf.index(tmp_path)
    report = sf.index(tmp_path, max_errors=2)
    assert abs(report.lost - (19 - report.samples["train"])) <= 1


def test_no_usable_sample_names_the_reasons(tmp_path: Path) -> None:
    """Where every sample is left out, the error says why, of the first three."""
    write_tar(tmp_path / "a.tar", [(f"{n}.txt", b"x") for n in range(5)])
    with pytest.raises(ConfigError, match=r"1.*\(.*a\.tar/0'.*2"):
        sf.index(tmp_path, max_errors=5)


def test_a_pack_does_not_replace_tars_that_were_indexed(tmp_path: Path) -> None:
    """Tars beside an index that was removed, or not finished, are nothing that a pack may replace."""
    write_tar(tmp_path / "tars/train/000000.tar", [*members_of([1]), ("noimage.txt", b"x")])
    sf.index(tmp_path / "tars", max_errors=1)
    (tmp_path / "tars/shardflow.json").unlink()
    before = contents(tmp_path / "tars")
    with pytest.raises(ConfigError, match="is not empty"):
        sf.pack(image_folder(tmp_path / "photos", 2), tmp_path / "tars", short_side=32, executor="serial")
    assert contents(tmp_path / "tars") == before
    assert sf.index(tmp_path / "tars", max_errors=1).samples == {"train": 1}


def test_a_sample_in_three_tars_is_reported_once_for_each(tmp_path: Path) -> None:
    """A sample of which three tars have an image each is left out of all of them."""
    for name, part in (("a", "jpg"), ("b", "png"), ("c", "webp")):
        write_tar(tmp_path / f"{name}.tar", [(f"torn.{part}", jpeg(1)), *([("0.jpg", jpeg(2))] if name == "c" else [])])
    report = sf.index(tmp_path, max_errors=3)
    assert [bad.path for bad in report.bad] == [f"{tmp_path}/{name}.tar/torn" for name in "abc"]
    assert (report.samples, sf.verify(tmp_path)) == ({"train": 1}, [])


@pytest.mark.parametrize("cut", [0, 512, 1034, 3000])
def test_tars_that_are_cut_short(tmp_path: Path, cut: int) -> None:
    """For a tar without its end, the last sample and the loss of the rest are reported; whole samples are kept."""
    path = write_tar(tmp_path / "a.tar", members_of(range(3)), kind=tarfile.USTAR_FORMAT)
    data = path.read_bytes().rstrip(b"\0")
    path.write_bytes(data[: len(data) - cut])
    report = sf.index(path, tmp_path / "virtual", max_errors=3)
    assert report.samples == {"train": 2}
    assert {bad.path.removeprefix(f"{path}") for bad in report.bad} >= {"", "/00002"}


def test_patterns_and_directories(tmp_path: Path) -> None:
    """Braces, wildcards, single tars and several directories are found; several directories need `to`."""
    for number in range(4):
        write_tar(tmp_path / f"a/{number:02}.tar", members_of([number]))
        write_tar(tmp_path / f"b/val/{number:02}.tar", members_of([number]))
    for number, (urls, samples) in enumerate(
        [
            ([f"{tmp_path}/a/{{00..02}}.tar"], {"train": 3}),
            ([f"{tmp_path}/a/0[12].tar"], {"train": 2}),
            ([f"{tmp_path}/a/00.tar", f"{tmp_path}/b"], {"train": 1, "val": 4}),
            ([f"{tmp_path}/b/val/*.tar"], {"val": 4}),
        ]
    ):
        assert sf.index(urls, tmp_path / f"virtual{number}").samples == samples
    with pytest.raises(ConfigError, match="with --to"):
        sf.index([tmp_path / "a", tmp_path / "b"])
    with pytest.raises(ConfigError, match="a tar is named twice"):
        sf.index([tmp_path / "a", tmp_path / "a/00.tar"], tmp_path / "twice")
    with pytest.raises(ConfigError, match="no tar 'z"):
        sf.index(f"{tmp_path}/a/z*.tar")
    with pytest.raises(ConfigError, match="is not a pattern"):
        sf.index(f"{tmp_path}/a/{{00.tar")
    with pytest.raises(NotFoundError, match=rf"{tmp_path}/c.*exist"):
        sf.index(tmp_path / "c")


def test_tars_joined_with_cat(tmp_path: Path) -> None:
    """If two tars were joined into one file, the second is reported."""
    path = write_tar(tmp_path / "a.tar", members_of(range(3)))
    path.write_bytes(path.read_bytes() + write_tar(tmp_path / "b.tar", members_of(range(3, 6))).read_bytes())
    with pytest.raises(PackIncompleteError, match=r"2 samples .*0 allowed"):
        sf.index(path, tmp_path / "virtual")
    report = sf.index(path, tmp_path / "virtual", max_errors=2)
    assert report.samples == {"train": 2}  # of the third it is not known whether it is whole


def test_equal_tars_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Copies of a tar under other names are indexed with a warning, so that no sample comes again without a word."""
    for name, first in (("a", 0), ("b", 0), ("c", 2), ("d", 0)):
        write_tar(tmp_path / f"{name}.tar", members_of(range(first, first + 2)))
    assert sf.index(tmp_path).samples == {"train": 8}
    assert f"2 tars with the bytes of another, such as {tmp_path}/b.tar of {tmp_path}/a.tar" in caplog.text


def test_tars_on_a_web_server(tmp_path: Path) -> None:
    """Tars at a URL without a listing are indexed by a pattern with braces, and read through the cache."""
    for number in range(2):
        write_tar(tmp_path / f"web/{number:02}.tar", members_of(range(3 * number, 3 * number + 3)))
    handler = functools.partial(Quiet, directory=str(tmp_path / "web"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        with pytest.raises(ConfigError, match=r"written.*--to"):
            sf.index(f"{url}/{{00..01}}.tar")
        with pytest.raises(NotFoundError, match=r"02\.tar does not exist; restore it, or leave it out of the pattern$"):
            sf.index(f"{url}/{{00..02}}.tar", tmp_path / "no")
        sf.index(f"{url}/{{00..01}}.tar", tmp_path / "virtual")
        train = sf.open(tmp_path / "virtual", cache=tmp_path / "cache")["train"]
        assert [train[n]["jpg"] for n in range(6)] == [jpeg(n) for n in range(6)]
        server.shutdown()


def test_what_is_there_is_never_replaced(tmp_path: Path) -> None:
    """An existing dataset, or another file with the name of an index, is refused; a stopped call is continued."""
    write_tar(tmp_path / "00.tar", members_of([1, 2]))
    (tmp_path / "train/0").mkdir(parents=True)
    (tmp_path / "train/0/00.npy").write_bytes(b"somebody's")
    with pytest.raises(ConfigError, match="has other content"):
        sf.index(tmp_path)
    assert (tmp_path / "train/0/00.npy").read_bytes() == b"somebody's"
    (tmp_path / "train/0/00.npy").unlink()
    fingerprint = sf.index(tmp_path).fingerprint
    with pytest.raises(DatasetExistsError, match=r"is already a dataset.*; .* remove .*, but not the tars$"):
        sf.index(tmp_path)
    (tmp_path / "shardflow.json").unlink()
    assert sf.index(tmp_path).fingerprint == fingerprint


def test_a_place_that_cannot_be_written_is_refused_before_tars_are_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A read-only directory is an error at once, also as the parent of one that is to be made."""
    write_tar(tmp_path / "a.tar", members_of([1]))
    monkeypatch.setattr(indexing_tars, "scan_tar", lambda *_: pytest.fail("a tar was read"))
    monkeypatch.setattr(os, "access", lambda path, _: path != tmp_path)  # root may write everywhere
    for to in (None, tmp_path / "new", tmp_path / "new" / "below"):
        with pytest.raises(AccessDeniedError, match=rf"^{tmp_path} cannot be written to; name another .* with --to"):
            sf.index(tmp_path / "a.tar", to)


def test_labels_of_some_tars_alone(tmp_path: Path) -> None:
    """A split in which only some tars have labels is refused, and a list of classes that is too short."""
    write_tar(tmp_path / "a.tar", members_of([1, 2]))
    write_tar(tmp_path / "b.tar", members_of([3], label=False))
    with pytest.raises(ConfigError, match="has none; index them as two"):
        sf.index(tmp_path)
    with pytest.raises(ConfigError, match="2 classes"):
        sf.index(tmp_path / "a.tar", classes=["x", "y"])
    assert sf.index(tmp_path / "b.tar", tmp_path / "virtual").samples == {"train": 1}
    assert sf.open(tmp_path / "virtual").classes is None


def test_invalid_names_are_refused(tmp_path: Path) -> None:
    """A tar whose name has other characters is refused before it is read."""
    write_tar(tmp_path / "a b.tar", members_of([1]))
    with pytest.raises(ConfigError, match=r"a b\.tar: names may only have"):
        sf.index(tmp_path)


def test_our_own_tars_give_what_was_packed(tmp_path: Path) -> None:
    """The index made of a packed tar is the packed index, byte for byte."""
    packed = make_dataset(tmp_path / "set", [5])
    (packed / "shardflow.json").unlink()
    sf.index(f"{packed}/train/*.tar", tmp_path / "virtual")
    assert (tmp_path / "virtual/train/0/000000.npy").read_bytes() == (packed / "train/000000.npy").read_bytes()


def test_samples_of_further_images_alone(tmp_path: Path) -> None:
    """Samples need no first image if further ones are declared, read in place as packed; if not, a message says how."""
    declared = sf.annotations.Annotations(images=("before.jpg", "after.jpg"))
    pairs = [(f"{n}.{part}.jpg", jpeg(2 * n + (part == "after"))) for n in range(4) for part in ("after", "before")]
    write_tar(tmp_path / "tars/a.tar", pairs)
    with pytest.raises(ConfigError, match=r"no image among its parts: after\.jpg, before\.jpg; declare .* by --image"):
        sf.index(tmp_path / "tars", max_errors=4)
    sf.index(tmp_path / "tars", annotations=declared)
    next((tmp_path / "tars").rglob("*.npy")).unlink()
    assert sf.repair(tmp_path / "tars").left == ()
    assert sf.verify(tmp_path / "tars") == []
    settings: dict[str, Any] = {"preset": "original", "executor": "serial", "shuffle": False}
    sf.pack(tmp_path / "tars", tmp_path / "packed", annotations=declared, **settings)
    options: dict[str, Any] = {"batch_size": 4, "fields": ("images",), "num_workers": 0, "shuffle": False}
    in_place, packed = (
        next(iter(sf.Loader(url, decoder=sf.decoders.CenterCrop(24), **options)))
        for url in (tmp_path / "tars", tmp_path / "packed")
    )
    assert all(map(torch.equal, in_place[0], packed[0]))


def test_numbers_as_others_write_them(tmp_path: Path) -> None:
    """Labels with leading zeros and a line break are the same numbers for every reader of labels."""
    members = [(name, data) for n in range(6) for name, data in members_of([n]) if not name.endswith(".cls")]
    members += [(f"{n:05}.cls", b"%03d\n" % (n % 2)) for n in range(6)]
    write_tar(tmp_path / "a.tar", sorted(members))
    sf.index(tmp_path)
    assert sf.verify(tmp_path) == []
    loader = sf.Loader(tmp_path, batch_size=6, fields=("label", "labels"), num_workers=0, shuffle=False)
    labels, hot = next(iter(loader))
    assert labels.tolist() == hot.argmax(1).tolist() == [0, 1] * 3
    sf.subset(tmp_path, tmp_path / "ones", classes=["1"])
    assert [sample["__key__"] for sample in sf.open(tmp_path / "ones")["train"]] == ["00001", "00003", "00005"]
    assert sf.split(tmp_path, tmp_path / "parts", val=0.34).samples == {"train": 4, "val": 2}
    assert [sample.labels for sample in SampleReader(sf.open(tmp_path), "train").samples(range(3))] == [[0], [1], [0]]
    sf.pack(tmp_path, tmp_path / "packed", executor="serial", short_side=32, shuffle=False)
    assert [sample["cls"] for sample in sf.open(tmp_path / "packed")["train"]] == [b"0", b"1"] * 3


@pytest.mark.parametrize("scaled", [False, True])
def test_coordinates_of_images_of_another_size(tmp_path: Path, scaled: bool) -> None:
    """Boxes of images that were halved since are refused; sizes of the original beside boxes that fit are not."""
    members = []
    for number in range(6):
        was_halved = number in (2, 3, 4)
        corner = [5, 6, 9, 9] if number == 3 else [30, 20, 90, 70]
        box = [side // 2 for side in corner] if was_halved and scaled else corner
        image = jpeg(number, 48, 40) if was_halved else jpeg(number, 96, 80)
        sizes = {} if number == 0 else {"width": 96, "height": 80}
        members += [(f"{number}.jpg", image), (f"{number}.json", json.dumps({"boxes": [box], **sizes}).encode())]
    write_tar(tmp_path / "a.tar", members)
    declared = sf.annotations.Annotations(boxes=sf.annotations.Boxes("json", "boxes", "xyxy"))
    report = sf.index(tmp_path, annotations=declared, max_errors=3)
    assert [bad.path.rpartition("/")[2] for bad in report.bad] == ([] if scaled else ["2", "3", "4"])
    assert all("of an image with 96x80 pixels, and this one has 48x40" in bad.reason for bad in report.bad)
    assert [sample["__key__"] for sample in sf.open(tmp_path)["train"]] == list("012345" if scaled else "015")


def test_samples_without_a_declared_mask(tmp_path: Path) -> None:
    """Samples that lack a declared part are bad ones, in any tar; if all lack it, its name is wrong."""
    with_mask = [
        member for number in range(3) for member in ((f"{number}.jpg", jpeg(number)), (f"{number}.seg.png", b"x"))
    ]
    write_tar(tmp_path / "tars/a.tar", with_mask)
    write_tar(tmp_path / "tars/b.tar", [(f"{number}.jpg", jpeg(number)) for number in (3, 4)])
    declared = sf.annotations.Annotations(masks=("seg.png",))
    with pytest.raises(
        PackIncompleteError, match=r"2 samples cannot be used, 0 allowed: .*has no seg.png, which is declared"
    ):
        sf.index(tmp_path / "tars", tmp_path / "index", annotations=declared)
    report = sf.index(tmp_path / "tars", tmp_path / "index", annotations=declared, max_errors=2)
    assert [bad.path.rpartition("/")[2] for bad in report.bad] == ["3", "4"]
    assert report.samples == {"train": 3}
    with pytest.raises(ConfigError, match=r"no sample has mask.png, which is declared; parts are jpg, seg.png"):
        sf.index(tmp_path / "tars", tmp_path / "other", annotations=sf.annotations.Annotations(masks=("mask.png",)))


def test_a_part_does_not_replace_the_key(tmp_path: Path) -> None:
    """A member of another writer that is called `__key__` changes neither the key nor the URL of its sample."""
    write_tar(tmp_path / "a.tar", [("1.jpg", jpeg(1)), ("1.__key__", b"x"), ("1.__url__", b"x")])
    sf.index(tmp_path)
    sample = sf.open(tmp_path)["train"][0]
    assert (sample["__key__"], sample["__url__"]) == ("1", str(tmp_path / "a.tar"))
