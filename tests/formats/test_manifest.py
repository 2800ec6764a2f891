from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ConfigError, ManifestError
from shardflow.formats import manifest
from shardflow.formats.columns import Column, ColumnFiles
from shardflow.formats.manifest import Manifest
from shardflow.formats.shard import Shard
from shardflow.formats.shard_layout import Sharding
from shardflow.formats.statistics import Statistics
from tests.helpers.examples import examples

ZERO, ONE = "0" * 64, "1" * 64
BYTES_SHA256 = "482520b830a8ec7e8cd159fb92397e24ac45fb7d69dd7c1631e48347e940b0df"
FINGERPRINT = "sha256:17a4149117bad1b36c6872d9cc583e2d585d2e07fdaccd1d3edd6110e874606f"


def shard(name: str = "train/000000.tar", **values: Any) -> Shard:
    """A shard's line with some values changed."""
    return Shard(**{"name": name, "samples": 3, "bytes": 10_240, "sha256": ZERO, "index_sha256": ONE, **values})


def example(**values: Any) -> Manifest:
    """A manifest with something in every place, some of it changed."""
    given_values: dict[str, Any] = {
        "splits": {"val": (shard("val/000000.tar"),), "train": (shard(), shard("train/000001.tar", samples=1))},
        "classes": ("tench", "Ünïcode", ""),
        "recipe": {"short_side": 256, "codec": {"name": "jpeg", "quality": 90}},
        "tools": {"shardflow": "0.1.0", "pillow": "11.0"},
        "inputs": 8,
        "mean": (0.485, 0.456, 0.406),
        "std": (0.229, 0.224, 0.225),
    }
    return Manifest(**{**given_values, **values})


def edited(edit: Callable[[dict[str, Any]], Any]) -> bytes:
    """The example's JSON, edited by hand."""
    content = json.loads(example().to_bytes())
    edit(content)
    return json.dumps(content).encode()


def fingerprinted(content: Any) -> bytes:
    """Any JSON with the fingerprint that its content has, in the form in which manifests are written."""
    text = json.dumps(
        {name: value for name, value in content.items() if name not in ("tools", "bases", "fingerprint")},
        sort_keys=True,
        separators=(",", ":"),
    )
    whole = {**content, "fingerprint": "sha256:" + hashlib.sha256(text.encode()).hexdigest()}
    return json.dumps(whole, sort_keys=True, indent=1).encode() + b"\n"


def test_bytes_and_fingerprint_are_frozen() -> None:
    """A manifest has the same bytes and fingerprint for ever: checkpoints and caches name datasets by it."""
    assert hashlib.sha256(example().to_bytes()).hexdigest() == BYTES_SHA256
    assert example().fingerprint == FINGERPRINT


def test_fingerprint_can_be_computed_by_others() -> None:
    """The fingerprint is the SHA-256 of the compact, sorted JSON without `tools` and `fingerprint`."""
    content = json.loads(example().to_bytes())
    assert json.loads(fingerprinted(content))["fingerprint"] == example().fingerprint == content["fingerprint"]


def test_round_trip() -> None:
    """What `to_bytes` writes, `from_bytes` reads, with and without what is optional."""
    for written in (example(), example(classes=None, mean=None, std=None, recipe={}, tools={}), example(classes=())):
        read = manifest.from_bytes(written.to_bytes())
        assert read == written
        assert read.to_bytes() == written.to_bytes()


def counted(**changed: Any) -> Statistics:
    """Statistics of two images, or of something else."""
    statistics = Statistics()
    for side in (300, 640):
        statistics.count(
            before=(side, 200), after=(100, 67), labels=(1,), bytes_before=9_000, bytes_after=800, turned=1
        )
    return replace(statistics, **changed)


def test_statistics_are_part_of_the_dataset() -> None:
    """Statistics by split are written, read and fingerprinted, and a manifest without them is as it always was."""
    written = example(statistics={"train": counted(), "val": Statistics()})
    read = manifest.from_bytes(written.to_bytes())
    assert read == written
    assert read.statistics is not None
    assert read.statistics["train"].counts == {"images": 2, "bytes_before": 18_000, "bytes_after": 1_600, "turned": 2}
    assert written.fingerprint != example().fingerprint
    assert manifest.from_bytes(example().to_bytes()).statistics is None


@pytest.mark.parametrize(
    "statistics",
    [
        {"train": counted().to_json()},
        {"train": counted().to_json(), "val": {}},
        {"train": counted().to_json(), "test": Statistics().to_json()},
        {"train": {**counted().to_json(), "classes": {"1": -2}}, "val": Statistics().to_json()},
        *({}, [], "many"),
    ],
    ids=str,
)
def test_wrong_statistics_are_refused(statistics: Any) -> None:
    """Statistics of other splits, or in another form, are refused even under a fingerprint that fits."""
    content = json.loads(example().to_bytes())
    with pytest.raises(ManifestError):
        manifest.from_bytes(fingerprinted({**content, "statistics": statistics}))


@pytest.mark.parametrize("split", ["../../other", "test", "a/b"])
def test_a_layout_of_other_splits_is_refused(split: str) -> None:
    """A layout names the receipts, which are copied by their names: it has the splits of the dataset, and no other."""
    counts = {"train": 2, "val": 1}
    sharding = Sharding(shard_samples=4, shuffle=False, seed=0, jobs=counts, inputs=counts)
    written = example(sharding=sharding)
    assert manifest.from_bytes(written.to_bytes()) == written
    content = json.loads(written.to_bytes())
    for count in ("jobs", "inputs"):
        content["layout"][count] = {split: 1, **counts}
    with pytest.raises(ManifestError):
        manifest.from_bytes(fingerprinted(content))


SEGMENTS = st.text("abcXYZ019._-", min_size=1, max_size=8).filter(lambda segment: segment not in (".", ".."))


@given(
    names=st.dictionaries(SEGMENTS, st.lists(SEGMENTS, max_size=3, unique=True), min_size=1, max_size=3),
    samples=st.integers(1, 2**32 - 1),
    size=st.integers(1, 2**63 - 1),
    classes=st.none() | st.lists(st.text(), max_size=3).map(tuple),
    statistic=st.none() | st.tuples(*[st.floats(0, 1)] * 3),
    recipe=st.dictionaries(st.text(), st.integers() | st.text() | st.booleans() | st.none(), max_size=3),
    inputs=st.integers(0, 10**12),
)
@examples(200)
def test_any_manifest_round_trips(
    names: dict[str, list[str]], samples: int, size: int, statistic: Any, **values: Any
) -> None:
    """Every manifest that can be made can be written and read again."""
    splits = {
        split: tuple(shard(f"{split}/{name}.tar", samples=samples, bytes=size) for name in shards)
        for split, shards in names.items()
    }
    written = Manifest(splits=splits, mean=statistic, std=statistic, **values)
    assert manifest.from_bytes(written.to_bytes()) == written


def test_equal_datasets_have_equal_bytes() -> None:
    """The order in which splits and recipe were given does not show in the file."""
    reordered = example(
        splits={"train": example().splits["train"], "val": example().splits["val"]},
        recipe={"codec": {"quality": 90, "name": "jpeg"}, "short_side": 256},
    )
    assert reordered.to_bytes() == example().to_bytes()


def test_tools_are_not_part_of_the_fingerprint() -> None:
    """The same dataset made by other versions has the same fingerprint, and its tools can be read nevertheless."""
    other = example(tools={"shardflow": "9.9"})
    assert other.fingerprint == example().fingerprint
    assert manifest.from_bytes(other.to_bytes()).tools == {"shardflow": "9.9"}


@pytest.mark.parametrize(
    "changed",
    [
        *({"classes": ("tench", "Ünïcode")}, {"classes": None}, {"recipe": {}}, {"inputs": 9}, {"mean": None}),
        {"std": (0.229, 0.224, 0.226)},
        {"splits": {"train": (shard(),)}},
        {"splits": {"val": (shard("val/000000.tar"),), "train": (shard("train/000001.tar", samples=1), shard())}},
        *[
            {"splits": {**example().splits, "train": (shard(**{slot: value}), shard("train/000001.tar", samples=1))}}
            for slot, value in {"samples": 4, "bytes": 1, "sha256": ONE, "index_sha256": ZERO, "name": "x.tar"}.items()
        ],
    ],
    ids=str,
)
def test_everything_else_is(changed: dict[str, Any]) -> None:
    """A change to anything but the tools is another fingerprint."""
    assert example(**changed).fingerprint != example().fingerprint


def test_edited_manifests_are_refused() -> None:
    """A value that was changed in the file no longer fits the fingerprint, and the error says what to do."""
    with pytest.raises(ManifestError, match=r"fingerprint.*edited or damaged"):
        manifest.from_bytes(edited(lambda content: content.update(inputs=7)))
    for edit in (
        lambda content: content["splits"]["train"].pop(),
        lambda content: content.update(fingerprint="sha256:" + ZERO),
    ):
        with pytest.raises(ManifestError, match="fingerprint"):
            manifest.from_bytes(edited(edit))


def test_every_wrong_byte_is_found_or_harmless() -> None:
    """Whatever one byte of the file becomes: a ManifestError, or the same dataset (the tools' versions aside)."""
    data = bytearray(example().to_bytes())
    for position in range(len(data)):
        kept = data[position]
        for value in {kept ^ (1 << bit) for bit in range(8)} - {kept}:
            data[position] = value
            try:
                read = manifest.from_bytes(bytes(data))
            except ManifestError:
                continue
            assert read.fingerprint == example().fingerprint
        data[position] = kept


def test_every_truncation_is_found() -> None:
    """A manifest cut off at any byte before its last brace is a ManifestError."""
    data = example().to_bytes()
    for length in range(len(data) - 1):
        with pytest.raises(ManifestError):
            manifest.from_bytes(data[:length])


NEWER = "update shardflow"


@pytest.mark.parametrize("version", [2, 7])
@pytest.mark.parametrize("form", [edited, lambda edit: fingerprinted(json.loads(edited(edit))), lambda _: None])
def test_newer_versions_are_named(version: int, form: Callable[[Any], bytes | None]) -> None:
    """A manifest of a newer version, which may have any content, is refused with both versions and the remedy."""
    data = form(lambda content: content.update(version=version)) or json.dumps({"version": version}).encode()
    with pytest.raises(ManifestError, match=rf"{version},.*1; {NEWER}"):
        manifest.from_bytes(data)


@pytest.mark.parametrize("version", [0, -1, "1", "2", None, True, 1.0, 1.5, 2.5, [1]])
def test_versions_that_never_were_are_refused(version: Any) -> None:
    """A version that no shardflow writes is damage or an edit, with the old fingerprint and with a fitting one."""
    data = edited(lambda content: content.update(version=version))
    with pytest.raises(ManifestError, match="edited or damaged"):
        manifest.from_bytes(data)
    with pytest.raises(ManifestError, match="edited; restore"):
        manifest.from_bytes(fingerprinted(json.loads(data)))


@pytest.mark.parametrize(
    "edit",
    [
        lambda content: content.update(tables={"train": "labels.npy"}),
        lambda content: content["splits"]["train"][0].update(labels_sha256=ZERO),
        lambda content: content["layout"].update(order="random"),
        lambda content: content["statistics"]["train"].update(depths={}),
    ],
)
def test_entries_of_newer_versions_are_named(edit: Callable[[dict[str, Any]], Any]) -> None:
    """Unknown entries under a right fingerprint are a newer shardflow's; under a wrong one, damage or an edit."""
    statistics = {"train": Statistics(), "val": Statistics()}
    sharding = Sharding(
        shard_samples=4, shuffle=False, seed=0, jobs={"train": 2, "val": 1}, inputs={"train": 5, "val": 1}
    )
    content = json.loads(example(statistics=statistics, sharding=sharding).to_bytes())
    assert manifest.from_bytes(fingerprinted(content)).sharding == sharding
    edit(content)
    with pytest.raises(ManifestError, match=rf"does not know \(.*{NEWER}"):
        manifest.from_bytes(fingerprinted(content))
    with pytest.raises(ManifestError, match="edited or damaged"):
        manifest.from_bytes(json.dumps(content).encode())


def test_values_in_another_form_are_refused() -> None:
    """An entry that is not what would be written is refused, although what is read of it is the same."""
    content = json.loads(example().to_bytes())
    for entry in ({"statistics": None}, {"layout": None}, {"bases": {}}, {"tools": [["shardflow", "1"]]}):
        with pytest.raises(ManifestError, match=r"restore it|not a "):
            manifest.from_bytes(fingerprinted({**content, **entry}))


HOSTILE = [
    *("..", ".", "../x", "a/../b", "a/..", "./x", "a/./b", "/etc/passwd", "a//b", "a/", "", "/", "a\\b", "C:x", "a\0b"),
    *("a b", "a\n", "\na", "a\nb", "a\r", "~", "$HOME", "a*", "%2e%2e", "ä", "٣", "\ud800"),
    *(7, None, ["a"], {"a": 1}, True),
]


@pytest.mark.parametrize("name", HOSTILE, ids=repr)
def test_names_that_could_leave_the_dataset_are_refused(name: Any) -> None:
    """A name that is absolute, climbs, or has anything but letters, digits and . _ - is refused wherever it stands."""
    with pytest.raises(ManifestError, match="shard name"):
        shard(f"{name}/x.tar" if isinstance(name, str) else name)
    with pytest.raises(ManifestError, match="shard name"):
        shard(f"x/{name}/x.tar" if isinstance(name, str) else name)
    with pytest.raises(ManifestError, match="split name"):
        example(splits={str(name) if isinstance(name, (list, dict)) else name: ()})


@pytest.mark.parametrize("name", ["train/0", "0.npy", "a.tar\n", "a.tar/b", "tar", "a.TAR", ".tar/"])
def test_shards_end_in_tar(name: str) -> None:
    """A shard whose name does not end in `.tar` is refused, a newline behind it included."""
    with pytest.raises(ManifestError, match="shard name"):
        shard(name)


def test_index_lies_beside_the_shard() -> None:
    """An index has its shard's name with another ending, dots elsewhere left alone."""
    assert shard("v1.tar.x/a.b.tar").index_name == "v1.tar.x/a.b.npy"


@pytest.mark.parametrize("name", ["a/b", "a\n", "..", ".", "", "a b"])
def test_split_names_are_one_segment(name: str) -> None:
    """A split's name is one segment of a path."""
    with pytest.raises(ManifestError, match="split name"):
        example(splits={name: (shard(),)})


@pytest.mark.parametrize(
    ("slot", "value"),
    [
        *[("samples", value) for value in (0, -1, True, 1.0, "3", None, 2**32, 10**30)],
        *[("bytes", value) for value in (0, -1, False, 10.0, "3", None, 2**63)],
        *[
            (slot, value)
            for slot in ("sha256", "index_sha256")
            for value in ("", "0" * 63, "0" * 65, "G" * 64, "A" * 64, "0" * 63 + "\n", "0" * 64 + "\n", "٣" * 64)
        ],
        *[(slot, value) for slot in ("sha256", "index_sha256") for value in (None, 0, ["0"] * 64, b"0" * 64)],
    ],
)
def test_values_of_a_shard_are_checked(slot: str, value: Any) -> None:
    """Numbers and digests of a shard that are out of range or of another type are refused by the shard's name."""
    with pytest.raises(ManifestError, match=r"train/000000\.tar"):
        shard(**{slot: value})


def test_an_entry_that_comes_twice_is_refused() -> None:
    """A manifest in which a name is repeated has two meanings."""
    data = example().to_bytes().replace(b'"splits"', b'"seed": 1, "seed": 2, "splits"', 1)
    with pytest.raises(ManifestError, match="'seed' twice"):
        manifest.from_bytes(data)


def test_a_dataset_names_each_shard_once() -> None:
    """No split at all, and a shard in two places, are refused."""
    with pytest.raises(ManifestError, match="it has no split"):
        example(splits={})
    with pytest.raises(ManifestError, match="twice"):
        example(splits={"train": (shard(), shard())})
    with pytest.raises(ManifestError, match="twice"):
        example(splits={"train": (shard(),), "val": (shard(),)})


@pytest.mark.parametrize(
    ("place", "value"),
    [
        *[("inputs", value) for value in ("8", 8.0, -1, True, None, [8], float("inf"), float("nan"), 1e999)],
        *[("classes", value) for value in ("tench", ["a", 1], {"a": 1}, [["a"]], 0, True, [None])],
        *[("recipe", value) for value in ([], [["a", 1]], ["ab"], None, "", 7)],
        *[("tools", value) for value in ([], [["a", "1"]], ["ab"], None, {"a": 1}, {"a": None}, {"a": {}})],
        *[
            (slot, value)
            for slot in ("mean", "std")
            for value in ("123", [0.1, 0.2, "0.3"], [0.1, 0.2, True], {"0": 1}, 0.5, [float("nan")] * 3, [10**400] * 3)
        ],
        *[("mean", value) for value in ([0.1, 0.2, 1.5], [-0.1, 0.2, 0.3], [float("inf")] * 3, [None] * 3)],
        *[("splits", value) for value in ({}, [], None, "train", {"train": {}}, {"train": None}, {"train": "ab"})],
        *[("splits", {"train": [value]}) for value in ({}, None, "x", [], 7, {"name": "a.tar"})],
        ("version", True),
        ("version", 1.0),
        ("more", 1),
    ],
)
def test_types_are_checked(place: str, value: Any) -> None:
    """A value of another type or out of range is a ManifestError, with the old fingerprint and with a fitting one."""
    content = json.loads(example().to_bytes())
    content[place] = value
    for data in (fingerprinted(content), json.dumps(content).encode()):
        with pytest.raises(ManifestError):
            manifest.from_bytes(data)


def test_earlier_versions_have_names_of_their_own() -> None:
    """The manifest of a version is kept under the digest of its fingerprint; anything but a fingerprint has no name."""
    assert manifest.kept_name(FINGERPRINT) == f"manifests/{FINGERPRINT[7:]}.json"
    for wrong in ("", ONE, f"sha256:{ONE}0", f"sha256:{ONE[:-1]}", f"sha1:{ONE}", f"sha256:../{ONE}", f"SHA256:{ONE}"):
        with pytest.raises(ConfigError, match="is not a fingerprint"):
            manifest.kept_name(wrong)


def test_places_cannot_be_added_or_left_out() -> None:
    """A place too many or too few in a shard or in the manifest is a ManifestError, with a fitting fingerprint too."""
    content = json.loads(example().to_bytes())
    for place in content:
        with pytest.raises(ManifestError):
            manifest.from_bytes(json.dumps({key: value for key, value in content.items() if key != place}).encode())
    whole = content["splits"]["val"][0]
    for line in ({**whole, "more": 1}, *({key: whole[key] for key in whole if key != place} for place in whole)):
        content["splits"]["val"][0] = line
        with pytest.raises(ManifestError):
            manifest.from_bytes(fingerprinted(content))


JSON = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=10)),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3),
    max_leaves=10,
)


@given(content=JSON)
@examples(200)
def test_any_json_is_a_manifest_error(content: Any) -> None:
    """JSON that is no manifest is a ManifestError and nothing else."""
    with pytest.raises(ManifestError):
        manifest.from_bytes(json.dumps(content).encode())


@given(place=st.sampled_from(sorted(json.loads(example().to_bytes()))), value=JSON, data=st.data())
@examples(400)
def test_any_json_in_any_place_is_a_manifest_error_or_kept(place: str, value: Any, data: st.DataObject) -> None:
    """Any JSON in any place is a ManifestError, or a manifest whose bytes say exactly that."""
    content = json.loads(example().to_bytes())
    if place == "splits" and data.draw(st.booleans()):
        content["splits"]["val"][0][data.draw(st.sampled_from(Shard.__slots__))] = value
    else:
        content[place] = value
    raw = json.dumps(content).encode() if place == "fingerprint" else fingerprinted(content)
    try:
        read = manifest.from_bytes(raw)
    except ManifestError:
        return
    assert json.loads(read.to_bytes()) == json.loads(raw)


@pytest.mark.parametrize(
    "data",
    [
        *(b"", b"\xff\xfe", b"\0", b"[" * 100_000, b"9" * 10_000),
        *(b'{"version": 1}', b"null", "[1]".encode("utf-16"), b"{}x"),
    ],
    ids=lambda data: repr(data[:12]),
)
def test_garbage_is_a_manifest_error(data: bytes) -> None:
    """Bytes that are no JSON, or nested or long without end, are a ManifestError and nothing else."""
    with pytest.raises(ManifestError, match="not a shardflow manifest"):
        manifest.from_bytes(data)


@given(data=st.binary(max_size=100))
def test_any_bytes_are_a_manifest_error(data: bytes) -> None:
    """Any bytes are a ManifestError and nothing else."""
    with pytest.raises(ManifestError):
        manifest.from_bytes(data)


def test_a_column_has_at_most_a_file_per_shard() -> None:
    """A column with more files than its split has shards is refused, also in a split without shards."""
    files = ColumnFiles(bytes=(100,), sha256=ZERO, nulls=0)
    columns = {"score": Column(kind="int64", stem="score", splits={"train": files})}
    assert manifest.from_bytes(example(columns=columns).to_bytes()).columns == columns
    with pytest.raises(ManifestError, match="more files in split 'train'"):
        example(columns=columns, splits={"train": ()})
