from __future__ import annotations

import copy
import logging
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset as wds
from torchvision.transforms import v2

import shardflow
from shardflow.dataset.open_dataset import Split
from shardflow.errors import ConfigError
from shardflow.storage.cache import Cache
from tests.helpers.counting import SlowStorage
from tests.helpers.loading import epochs_of
from tests.helpers.making import make_dataset

TOTAL = 90


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 90 labelled samples in three uneven shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [50, 7, 33])


def labels(samples: Any) -> list[int]:
    """The labels of samples, in order."""
    return [int(sample["cls"]) for sample in samples]


def test_samples_are_webdataset_samples(dataset: Path) -> None:
    """A sample is a dict of key, URL and the parts' bytes, and webdataset's own stages take it from there."""
    source = shardflow.samples(dataset, shuffle=False)
    first = next(iter(source))
    assert first["__key__"] == "000000000"
    assert first["__url__"] == str(dataset / "train/000000.tar")
    assert (type(first["jpg"]), first["cls"]) == (bytes, b"0")
    pipeline = wds.DataPipeline(source, wds.decode("torchrgb8"), wds.to_tuple("jpg", "cls"))
    images, numbers = zip(*pipeline, strict=True)
    assert {image.dtype for image in images} == {torch.uint8}
    assert numbers == tuple(range(TOTAL))
    with pytest.raises(AttributeError, match=r"wds\.shuffle"):
        source.shuffle(100)


def test_order_is_the_loaders(dataset: Path) -> None:
    """Samples come in the order in which a loader of the same seed uses them, epoch by epoch."""
    source = shardflow.samples(dataset, seed=3)
    workers = shardflow.Workers(0, persistent_workers=False)
    loader = shardflow.Loader(dataset, seed=3, batch_size=7, tail="short", num_workers=workers, fields=("label",))
    for _ in range(2):
        assert labels(source) == [label for (numbers,) in loader for label in numbers.tolist()]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("world_size", [1, 2, 5])
def test_epoch_is_exact_over_ranks_and_workers(dataset: Path, workers: int, world_size: int) -> None:
    """All ranks and all DataLoader workers together yield every sample once, in shares that differ by one at most."""
    shares = []
    for rank in range(world_size):
        source = shardflow.samples(dataset, group=(rank, world_size))
        pipeline = wds.DataPipeline(source)
        shares.append(labels(wds.WebLoader(pipeline, batch_size=None, num_workers=workers)))
    assert sorted(label for share in shares for label in share) == list(range(TOTAL))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_epochs_follow_each_other_in_persistent_workers(dataset: Path) -> None:
    """Persistent workers move on by themselves, and set_epoch reaches them, also that of a deep copy."""
    alone = shardflow.samples(dataset)
    expected = [labels(alone) for _ in range(3)]
    assert len({tuple(order) for order in expected}) == 3
    source = copy.deepcopy(shardflow.samples(dataset))
    loader = wds.WebLoader(wds.DataPipeline(source), batch_size=None, num_workers=1, persistent_workers=True)
    assert [labels(loader) for _ in range(3)] == expected
    source.set_epoch(1)
    assert labels(loader) == expected[1]
    assert labels(loader) == expected[2]


@pytest.mark.parametrize(("persistent", "moved", "warned"), [(False, False, 2), (False, True, 0), (True, False, 0)])
def test_new_workers_that_repeat_an_epoch_say_so(
    persistent: bool, moved: bool, warned: int, dataset: Path, tmp_path: Path
) -> None:
    """Workers that end with each epoch know of no earlier one; without set_epoch they repeat its order, and say so."""
    source = shardflow.samples(dataset)
    loader = wds.WebLoader(wds.DataPipeline(source), batch_size=None, num_workers=2, persistent_workers=persistent)
    handler = logging.FileHandler(tmp_path / "log")  # the workers are forked, and write to it too
    logging.getLogger("shardflow").addHandler(handler)
    try:
        for epoch in range(3):
            if moved:
                source.set_epoch(epoch)
            assert sorted(labels(loader)) == list(range(TOTAL))
    finally:
        logging.getLogger("shardflow").removeHandler(handler)
        handler.close()
    assert (tmp_path / "log").read_text().count("new workers begin epoch 0 again") == warned


def test_a_pipeline_of_the_users_own_has_exact_epochs(dataset: Path) -> None:
    """Behind the source, webdataset's shuffle and batches and torchvision's transforms keep each epoch exact."""
    augment = v2.Compose([v2.RandomResizedCrop(16, antialias=True), v2.RandomHorizontalFlip()])
    pipeline = wds.DataPipeline(
        shardflow.samples(dataset),
        wds.shuffle(20),
        wds.decode("torchrgb8"),
        wds.to_tuple("jpg", "cls"),
        wds.map_tuple(augment, int),
        wds.batched(8),
    )
    loader = wds.WebLoader(pipeline, batch_size=None, num_workers=2, persistent_workers=True)
    epochs = []
    for _ in range(3):
        batches = list(loader)
        assert {(images.dtype, tuple(images.shape[1:])) for images, _ in batches} == {(torch.uint8, (3, 16, 16))}
        assert [len(images) for images, _ in batches].count(8) == 10  # and a smaller one of each worker
        epochs.append([int(label) for _, numbers in batches for label in numbers])
        assert sorted(epochs[-1]) == list(range(TOTAL))
    assert epochs[0] != epochs[1] != epochs[2] != epochs[0]


@pytest.mark.parametrize("stage", [wds.split_by_node, wds.split_by_worker])
def test_stages_that_split_are_refused(dataset: Path, stage: Any) -> None:
    """webdataset's stages that split shards would drop samples of this source, so a pipeline with one ends at once."""
    pipeline = wds.DataPipeline(shardflow.samples(dataset), stage, wds.to_tuple("__key__"))
    for workers in (0, 2):
        with pytest.raises(ConfigError, match=rf"leave wds\.{stage.__name__} out"):
            next(iter(wds.WebLoader(pipeline, batch_size=None, num_workers=workers)))


def test_first_samples_do_not_wait_for_a_whole_shard(dataset: Path, tmp_path: Path) -> None:
    """Samples are yielded from the part of a shard that has arrived, while the rest is on its way."""
    split, storage = shardflow.open(dataset)["train"], SlowStorage(dataset, tmp_path / "log")
    storage.first_bytes = split.shards[0].bytes // 2
    far = Split(storage, "train", split.shards, Cache(tmp_path / "cache"))
    source = shardflow.samples(dataset, shuffle=False)
    source._split, source._order = far, epochs_of(far, shuffle=False)
    fetching = threading.Thread(target=far.reader.fetch, args=(0,))
    fetching.start()
    assert storage.begun.wait(10)
    samples = iter(source)
    try:
        assert labels([next(samples), next(samples)]) == [0, 1]
        assert not far.reader.is_local(0)
    finally:
        storage.go_on.set()
        fetching.join()
    assert labels(samples) == list(range(2, TOTAL))
