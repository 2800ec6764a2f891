"""LitData: optimised chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import litdata
from litdata.streaming import downloader

from . import Place, Start
from .augmentations import AUGMENTATIONS
from .recipe import BATCH, WORKERS


def _item(path: str) -> dict[str, Any]:
    return {"image": Path(path).read_bytes(), "label": int(Path(path).stem)}


def prepare(pictures: Path, data: Path, chunk_bytes: str = "16MB") -> None:
    """Write chunks with the JPEG bytes as they are."""
    paths = sorted(map(str, pictures.rglob("*.jpg")))
    litdata.optimize(
        fn=_item, inputs=paths, output_dir=str(data / "chunks"), chunk_bytes=chunk_bytes, num_workers=WORKERS
    )


class Pictures(litdata.StreamingDataset):
    """Augments as it is read, as the documentation shows."""

    def __init__(self, variant: str, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        self._augmentation = AUGMENTATIONS[variant]

    def __getitem__(self, index: Any) -> Any:
        sample = super().__getitem__(index)
        return self._augmentation(sample["image"]), sample["label"]


def open_loader(data: Path, variant: str) -> Start:
    """`variant` names the augmentation."""
    dataset = Pictures(variant, str(data / "chunks"), shuffle=True, drop_last=False)
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)


def open_remote(place: Place, variant: str) -> Start:
    """`variant` names the augmentation. Chunks are kept in a local folder from epoch to epoch."""
    downloader._OBSTORE_CLIENT_OPTIONS["allow_http"] = True  # otherwise it fails where the endpoint is not https
    dataset = Pictures(variant, place.url, cache_dir=str(place.cache), shuffle=True, drop_last=False)
    loader = litdata.StreamingDataLoader(dataset, batch_size=BATCH, num_workers=WORKERS, persistent_workers=True)
    return lambda: iter(loader)
