from __future__ import annotations

import hashlib
import json
import pickle
import re
import tracemalloc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.errors import ManifestError
from shardflow.formats import manifest
from shardflow.formats.manifest import Manifest
from shardflow.formats.shard import Shard
from shardflow.formats.shard_table import ShardTable, cut_tables

DIGESTS = st.binary(min_size=32, max_size=32).map(bytes.hex)
SHARDS = st.lists(
    st.builds(
        Shard,
        name=st.from_regex(r"([a-c._-]{3}/){0,2}[a-z0-9.]{0,5}\.tar", fullmatch=True),
        samples=st.sampled_from((1, 2**32 - 1)) | st.integers(1, 5000),
        bytes=st.sampled_from((1, 2**63 - 1)) | st.integers(1, 10**12),
        sha256=DIGESTS,
        index_sha256=DIGESTS,
    ),
    max_size=4,
)


def numbered(count: int) -> list[Shard]:
    """Shards whose digests follow from their numbers."""
    digests = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(2 * count)]
    return [
        Shard(
            name=f"train/{n}.tar", samples=n + 1, bytes=512 + n, sha256=digests[2 * n], index_sha256=digests[2 * n + 1]
        )
        for n in range(count)
    ]


@given(shards=SHARDS, other=SHARDS)
def test_a_table_is_the_sequence_of_its_shards(shards: list[Shard], other: list[Shard]) -> None:
    """A table has the shards it was made of, one by one, in slices, pickled, and as the JSON of a fingerprint."""
    table = ShardTable.of(shards)
    assert [*table] == shards == [table[number - len(shards)] for number in range(len(shards))]
    assert (table[1:], table[::-1]) == (tuple(shards[1:]), tuple(shards[::-1]))
    for number in (len(shards), -len(shards) - 1):
        with pytest.raises(IndexError):
            table[number]
    assert (table.names, table.samples.tolist(), table.bytes.tolist()) == (
        [shard.name for shard in shards],
        [shard.samples for shard in shards],
        [shard.bytes for shard in shards],
    )
    assert pickle.loads(pickle.dumps(table)) == table == ShardTable.of(iter(shards))
    assert (table == ShardTable.of(other)) == (shards == other)
    written = json.dumps([shard.to_json() for shard in shards], sort_keys=True, separators=(",", ":"))
    assert b"".join(table.canonical()) == written.encode()


def test_a_table_knows_the_contents_of_its_files() -> None:
    """The set of contents has the SHA-256 of each tar and index, and nothing else, whatever it looks like."""
    shards = numbered(50)
    contents = ShardTable.of(shards[:49]).contents
    assert all(each.sha256 in contents and each.index_sha256 in contents for each in shards[:49])
    found = shards[0].sha256
    for missing in (shards[49].sha256, found[:16] + "0" * 48, found.upper(), found[:-1], "", "x" * 64, None, 7):
        assert missing not in contents
    assert "0" * 64 not in ShardTable.of(()).contents


def written(splits: dict[str, list[Shard]], **values: Any) -> bytes:
    """A manifest with shards in some splits."""
    return Manifest(splits=splits, **values).to_bytes()


def reformatted(data: bytes) -> bytes:
    """The same JSON in a form that no table is cut from."""
    return data.replace(b'\n "splits"', b'\n"splits"')


@given(shards=SHARDS.filter(lambda shards: len({shard.name for shard in shards}) == len(shards)))
def test_a_manifest_is_cut_into_tables(shards: list[Shard]) -> None:
    """What is cut from a written manifest is what its JSON says, with the splits' lists left empty."""
    splits = {"val": shards[:1], "test": [], "train": shards[1:]}
    data = written(splits, recipe={"splits": {"train": []}, "text": '\n "splits": {\n  "train": ['})
    cut = cut_tables(data)
    assert cut is not None
    content = json.loads(data)
    assert json.loads(cut[0]) == {**content, "splits": {split: [] for split in splits}}
    assert cut[1] == {split: ShardTable.of(shards) for split, shards in splits.items()}
    assert cut_tables(json.dumps(content).encode()) is None
    assert manifest.from_bytes(data) == manifest.from_bytes(reformatted(data))


def replaced(old: str, new: str) -> Callable[[str], str]:
    """An edit of the second shard's text."""
    return lambda text: (at := text.index('"train/1.tar"') - 200) and text[:at] + re.sub(old, new, text[at:], count=1)


EDITS = [
    *(replaced(r'"samples": 2', f'"samples": {value}') for value in ("02", "2.0", "2e0", "-2", "0", '"2"', 2**32)),
    *(replaced(r'"bytes": 513', f'"bytes": {value}') for value in (2**63 - 1, 2**63, 10**30, 0, "null", "true")),
    *(replaced(r"train/1.tar", name) for name in ("../1.tar", "a/./b.tar", "/a.tar", "a//b.tar", ".tar", "a.tar/b")),
    *(replaced(r"train/1.tar", name) for name in ("train/2.tar", "train/\\\\u0031.tar", "train/1.TAR", "ä.tar", "")),
    *(
        replaced(r'"sha256": "[0-9a-f]{64}"', f'"sha256": "{"A" * 64}"'),
        replaced(r'"sha256": "[0-9a-f]', '"sha256": "'),
    ),
    *(replaced(r'"sha256"', name) for name in ('"sha257"', '"sha256": "", "sha256"')),
    *(replaced(r"\n   },\n", text) for text in ("\n   }\n", "\n   },\n\n", "\n   },,\n", "\n   } ,\n", "},")),
    *(replaced(r"\n   }\n  ]", text) for text in ("\n   },\n  ]", "\n   }]", "\n   }\n  ],\n", "\n  ]", "\n   }\n  ")),
    replaced(r'    "samples": 2,\n    "sha256": ("[^"]*")', r'    "sha256": \1,\n    "samples": 2'),
    lambda text: text.replace('"splits"', '"splats"'),
    lambda text: text.replace('"train": [', '"tr ain": ['),
    lambda text: text.replace('"train": [', '"train": [],\n  "train": ['),
    lambda text: text.replace('"val": []', '"val": [\n  ]'),
    lambda text: text.replace('"val": []', '"val": {}'),
    lambda text: text.replace('"tools": {}', '"tools": []'),
    lambda text: text.replace(' "splits"', ' "recipe2": {},\n "splits"'),
    lambda text: text,
]


@pytest.mark.parametrize("edit", EDITS)
@pytest.mark.parametrize("fits", [False, True])
def test_both_ways_of_reading_say_the_same(edit: Callable[[str], str], fits: bool) -> None:
    """An edited manifest, its fingerprint mended or not, is read or refused alike, cut into tables or not."""
    text = edit(written({"train": numbered(3), "val": []}).decode())
    if fits:
        try:
            content = json.loads(text)
        except ValueError:
            content = {}
        counted = {name: value for name, value in content.items() if name not in ("tools", "bases", "fingerprint")}
        canonical = json.dumps(counted, sort_keys=True, separators=(",", ":")).encode()
        text = re.sub(r"sha256:[0-9a-f]{64}", "sha256:" + hashlib.sha256(canonical).hexdigest(), text)

    def outcome(data: bytes) -> Manifest | str:
        try:
            return manifest.from_bytes(data)
        except ManifestError as error:
            return str(error)

    found, expected = outcome(text.encode()), outcome(reformatted(text.encode()))
    if isinstance(found, str) and "not a shardflow manifest" in found:  # with the place in the text
        assert isinstance(expected, str)
        assert found.partition(" line ")[0] == expected.partition(" line ")[0]
    else:
        assert found == expected
    assert isinstance(found, Manifest) or edit is not EDITS[-1]


def test_reading_makes_no_objects_of_shards() -> None:
    """Reading a manifest takes little more memory than the file has bytes, however many shards it names."""
    data = written({"train": numbered(3000)})
    tracemalloc.start()
    try:
        read = manifest.from_bytes(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert np.array_equal(read.splits["train"][2999].samples, 3000)
    assert peak < 3 * len(data)  # 1.1 for more shards; as objects of JSON it would be 7
