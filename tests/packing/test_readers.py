from __future__ import annotations

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
import webdataset as wds

import shardflow
from tests.helpers.folders import image_folder
from tests.helpers.reference import decoded


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 40 samples in three shards."""
    root = tmp_path_factory.mktemp("readers")
    shardflow.pack(image_folder(root / "src"), root / "dst", short_side=48, shard_samples=15, workers=1)
    return root / "dst"


def expected(packed: Path) -> dict[str, tuple[bytes, bytes]]:
    """Every sample, by key, as this project reads it."""
    return {sample["__key__"]: (sample["jpg"], sample["cls"]) for sample in shardflow.open(packed)["train"]}


def test_tar_extracts_every_member(packed: Path, tmp_path: Path) -> None:
    """Plain `tar` extracts the shards, and each file holds the bytes of its part."""
    for shard in sorted((packed / "train").glob("*.tar")):
        subprocess.run(["tar", "xf", shard, "-C", tmp_path], check=True)
    samples = expected(packed)
    assert len(samples) == 40
    assert len(os.listdir(tmp_path)) == 80
    for key, (jpeg, label) in samples.items():
        assert (tmp_path / f"{key}.jpg").read_bytes() == jpeg
        assert (tmp_path / f"{key}.cls").read_bytes() == label


@pytest.mark.filterwarnings("ignore:unclosed file:ResourceWarning")  # webdataset leaves closing to the collector
def test_webdataset_reads_every_sample(packed: Path) -> None:
    """Plain `webdataset.WebDataset` yields every sample with its bytes."""
    urls = sorted(map(str, (packed / "train").glob("*.tar")))
    found = {sample["__key__"]: (sample["jpg"], sample["cls"]) for sample in wds.WebDataset(urls, shardshuffle=False)}
    assert found == expected(packed)


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::DeprecationWarning")  # of the library's own making
@pytest.mark.parametrize("streaming", [True, False])
def test_hugging_face_datasets_read_every_sample(
    packed: Path, streaming: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The webdataset builder of Hugging Face `datasets` yields every sample: image, label and key."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import datasets

    files = sorted(map(str, (packed / "train").glob("*.tar")))
    where = {"split": "train", "streaming": streaming, "cache_dir": str(tmp_path)}
    found = datasets.load_dataset("webdataset", data_files={"train": files}, **where)
    samples = expected(packed)
    keys = set()
    for row in found:
        jpeg, label = samples[row["__key__"]]
        assert row["cls"] == int(label)
        keys.add(row["__key__"])
        assert min(row["jpg"].size) == 48
        assert (np.asarray(row["jpg"]) == decoded(jpeg)).all()
    assert keys == samples.keys()
