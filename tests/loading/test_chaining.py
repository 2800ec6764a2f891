from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset as wds

import shardflow
from shardflow.errors import ConfigError
from tests.helpers.making import make_dataset


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Forty samples in two shards."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [25, 15])


def loader(dataset: Path, **options: Any) -> shardflow.Loader:
    """A loader of labels, five batches of eight."""
    return shardflow.Loader(dataset, **{"batch_size": 8, "fields": ("label",), "num_workers": 0, **options})


def flat(batches: Any) -> list[int]:
    """The labels of each batch, in a row."""
    return [label for (labels,) in batches for label in labels.tolist()]


def test_a_loader_is_a_web_loader_over_a_data_pipeline(dataset: Path) -> None:
    """The workers run a `wds.DataPipeline` of stages, and the end in the training process is a `wds.WebLoader`."""
    some = loader(dataset)
    assert isinstance(some._pool, wds.WebLoader)
    assert isinstance(some._pool.pipeline[0], torch.utils.data.DataLoader)
    assert isinstance(some._pool.pipeline[0].dataset, wds.DataPipeline)


@pytest.mark.parametrize("workers", [0, 1])
def test_webdatasets_methods_go_on_from_the_batches(dataset: Path, workers: int) -> None:
    """Stages of WebDataset follow the batches, in this process: split, mapped, collated anew, counted."""
    expected = loader(dataset)
    some = loader(dataset, num_workers=workers)
    first = some.unbatched().map_tuple(int).map(lambda sample: sample[0] + 1000)
    assert list(first) == [label + 1000 for label in flat(expected)]
    assert flat(some.unbatched().batched(5)) == flat(expected)  # the next epoch
    assert (some.epoch, some.remaining) == (2, 5)


def test_to_tuple_names_the_fields(dataset: Path) -> None:
    """The call that webdataset needs before batches is refused with the fields to name, in any form of its names."""
    for names in (("jpg;png", "cls", "txt"), ("jpg cls txt",)):
        with pytest.raises(ConfigError, match=r"pass fields=\('image', 'label', 'txt'\)"):
            loader(dataset).to_tuple(*names)


def test_with_epoch_runs_across_epochs(dataset: Path) -> None:
    """`with_epoch` gives an iteration so many batches, of one epoch after the other, and leaves the loader as it is."""
    some, plain = loader(dataset), loader(dataset)
    expected = flat(plain) + flat(itertools.islice(plain, 2))
    assert flat(some.with_epoch(7)) == expected
    assert (len(some), len(list(some))) == (5, 5)
    doubled = some.map(lambda batch: (2 * batch[0],)).with_epoch(nbatches=6)
    assert len(list(doubled)) == 6
    lengths = [len(list(some.compose().repeat(*given))) for given in ((2,), (2, 7), (1, 7))]
    assert lengths == [10, 7, 5]


def test_iterations_of_with_epoch_go_on_where_the_last_ended(dataset: Path) -> None:
    """Pieces of epochs have each sample once per epoch, also after a break, behind a buffer, and after a resume."""
    some, plain = loader(dataset), loader(dataset)
    expected = [label for _ in range(6) for label in flat(plain)]
    chain = some.with_epoch(3)
    found = flat(itertools.islice(chain, 2)) + flat(chain)
    resumed = loader(dataset)
    resumed.load_state_dict(some.state_dict())
    assert flat(resumed) == []  # the state is that of the end of an epoch
    resumed.load_state_dict(some.state_dict())
    rest = resumed.unbatched().batched(8).with_epoch(7)
    assert found + flat(rest) + flat(rest) == expected[: 19 * 8]
    some.set_epoch(4)
    assert flat(chain) == expected[160:184]
    shuffled = loader(dataset).unbatched().shuffle(16).with_epoch(30)
    samples = [int(label) for _ in range(12) for (label,) in shuffled]
    assert sorted(samples) == sorted([*range(40)] * 9)


@pytest.mark.parametrize("stage", ["shuffle", "batched"])
def test_samples_in_a_buffer_are_told_with_the_state(
    dataset: Path, stage: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A state that counts samples in a buffer of the pipeline says so once; one of the loader alone does not."""
    some = loader(dataset)
    chain = getattr(some.unbatched(), stage)(16)
    next(iter(chain))
    some.state_dict()
    (message,) = caplog.messages
    assert f"samples that {stage} of the pipeline holds, and a resumed epoch lacks them" in message
    some.state_dict()
    assert len(caplog.messages) == 1


def test_the_loader_keeps_the_state_of_its_chain(dataset: Path, caplog: pytest.LogCaptureFixture) -> None:
    """A chain is resumed by the state of its loader, which counts the batches that the chain has taken."""
    whole = flat(loader(dataset))
    stopped = loader(dataset)
    taken = list(itertools.islice(stopped.unbatched().map_tuple(int), 16))
    resumed = loader(dataset)
    resumed.load_state_dict(stopped.state_dict())
    assert [label for (label,) in taken] + flat(resumed) == whole
    assert not caplog.messages


def test_a_chain_raises_the_errors_of_its_workers(dataset: Path) -> None:
    """An error of a worker's transform passes a chain as it is, and the next iteration is whole."""
    calls = itertools.count()

    def fails_once(labels: torch.Tensor) -> tuple[torch.Tensor]:
        if next(calls) == 1:
            raise ArithmeticError("once")
        return (labels,)

    chain = loader(dataset, batch_transform=fails_once).unbatched()
    with pytest.raises(ArithmeticError, match="once"):
        list(chain)
    assert len(list(chain)) == 40
    calls = itertools.count()
    chain = loader(dataset, batch_transform=fails_once).unbatched().with_epoch(50)
    with pytest.raises(ArithmeticError, match="once"):
        list(chain)
    assert len(list(chain)) == 50
