"""MosaicML Streaming: MDS shards."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from streaming import MDSWriter, StreamingDataset
from streaming.base.util import clean_stale_shared_memory
from torch.utils.data import DataLoader

from . import Place, Start
from .augmentations import AUGMENTATIONS
from .recipe import BATCH, WORKERS

COLUMNS = {"image": "bytes", "label": "int"}


def prepare(pictures: Path, data: Path, shard_bytes: int = 64 << 20) -> None:
    """Write MDS shards with the JPEG bytes as they are."""
    with MDSWriter(out=str(data / "mds"), columns=COLUMNS, size_limit=shard_bytes) as writer:
        for path in sorted(pictures.rglob("*.jpg"), key=lambda path: path.stem):
            writer.write({"image": path.read_bytes(), "label": int(path.stem)})


class Pictures(StreamingDataset):
    """Augments as it is read, as the documentation shows."""

    def __init__(self, variant: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self._augmentation = AUGMENTATIONS[variant]

    def __getitem__(self, number: int) -> Any:
        sample = super().__getitem__(number)
        return self._augmentation(sample["image"]), sample["label"]


def open_loader(data: Path, variant: str) -> Start:
    """`variant` names the augmentation."""
    dataset = Pictures(variant, local=str(data / "mds"), shuffle=True, batch_size=BATCH)
    loader = DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)


def open_remote(place: Place, variant: str) -> Start:
    """`variant` names the augmentation. Shards are kept in a local folder from epoch to epoch."""
    clean_stale_shared_memory()
    local = str(place.cache / "mds")
    dataset = Pictures(variant, remote=place.url, local=local, shuffle=True, batch_size=BATCH)
    loader = DataLoader(dataset, BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)
