from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import pytest
from torchvision.transforms import v2

import shardflow as sf
from shardflow.loading.run_metadata import describe_object
from tests.helpers.making import make_dataset


def scaled(*columns: Any, by: int = 1) -> Any:
    """A batch transform."""
    return (*columns, by)


class Plain:
    """A transform without words of its own."""

    def __init__(self) -> None:
        self.size, self._secret = 3, object()


class Unspeakable:
    """A transform that cannot be put into words."""

    def __call__(self, image: Any) -> Any:
        """Return it as it came."""
        return image

    def __repr__(self) -> str:
        raise NotImplementedError


@pytest.mark.parametrize(
    ("thing", "expected"),
    [
        (None, None),
        (sf.decoders.CenterCrop(160), "CenterCrop(size=160, resize=183, max_pixels=110000000)"),
        (v2.RandomHorizontalFlip(0.3), "RandomHorizontalFlip(p=0.3)"),
        (scaled, f"{__name__}.scaled"),
        (functools.partial(scaled, by=2), f"partial({__name__}.scaled, by=2)"),
        (Plain(), "Plain(size=3)"),
        (functools.partial(print, Plain.__init__), "partial(builtins.print, <function Plain.__init__>)"),
    ],
    ids=["nothing", "decoder", "torchvision", "function", "partial", "plain", "partial of a method"],
)
def test_objects_in_words(thing: Any, expected: str | None) -> None:
    """Decoders and transforms are described by what they are, never by where in memory they lie."""
    assert describe_object(thing) == expected


def test_a_loader_describes_itself(tmp_path: Path) -> None:
    """Identity, plan and versions are plain JSON, the same after a resume, and enough to make the same loader."""
    dataset = make_dataset(tmp_path / "set", [20])
    settings = {"seed": 7, "batch_size": 4, "limit": 12, "num_workers": 0}
    loader = sf.Loader(
        dataset, **settings, shuffle=sf.Shuffle(buffer=16), batch_transform=functools.partial(scaled, by=2)
    )
    said = json.loads(json.dumps(loader.describe()))
    assert said["fingerprint"] == sf.open(dataset).fingerprint
    assert {name: said[name] for name in settings} == settings
    assert (said["shuffle_buffer"], said["shuffle"], said["max_errors"]) == (16, True, 0)
    assert (said["samples"], said["world_size"], said["streams"], said["fields"]) == (12, 1, 8, ["image", "label"])
    assert said["decoder"].startswith("RandomResizedCrop(size=224, ")
    assert said["versions"]["shardflow"] == sf.__version__
    next(iter(loader))
    assert loader.describe() == said
    sf.Loader(dataset, version=said["fingerprint"], batch_size=4, num_workers=0)


def test_nothing_is_described_unasked(tmp_path: Path) -> None:
    """A loader works with transforms whose `__repr__` does not."""
    dataset = make_dataset(tmp_path / "set", [4])
    loader = sf.Loader(dataset, batch_size=4, num_workers=0, transform=Unspeakable())
    assert len(list(loader)) == 1


def test_a_mix_describes_its_sources(tmp_path: Path) -> None:
    """A mix says how it is mixed and describes each source; a view names what it leads to."""
    make_dataset(tmp_path / "set", [20])
    sf.subset(tmp_path / "set", tmp_path / "few", limit=8)
    mix = sf.Mix([(tmp_path / "set", 3), (tmp_path / "few", 1)], batch_size=4, num_workers=0)
    said = json.loads(json.dumps(mix.describe()))
    assert said["weights"] == [3, 1]
    assert [source["samples"] for source in said["sources"]] == [20, 8]
    base = {"url": "../set", "fingerprint": sf.open(tmp_path / "set").fingerprint}
    assert said["sources"][1]["bases"] == {"0": base}


def test_credentials_are_not_told(tmp_path: Path) -> None:
    """The URL is told without what may be secret in it or beside it."""
    sf.sync(make_dataset(tmp_path / "set", [8]), "memory://described")
    options = {"some_token": "canary-secret"}
    loader = sf.Loader(
        "memory://described", batch_size=4, num_workers=0, cache=tmp_path / "cache", storage_options=options
    )
    assert loader.describe()["url"] == "memory://described"
    assert "canary" not in json.dumps(loader.describe())
