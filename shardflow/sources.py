"""Sources: inputs of `pack` and `extend` that need more than a path or URL."""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from .packing.sources.coco import Coco as Coco
    from .packing.sources.collection import Collection as Collection
    from .packing.sources.folder import Folder as Folder
    from .packing.sources.parquet import Parquet as Parquet
    from .packing.sources.shards import Shards as Shards
    from .packing.sources.source import Source as Source
    from .packing.sources.source import SourceKind as SourceKind
    from .packing.sources.table import Table as Table
    from .packing.sources.voc import Voc as Voc
    from .packing.sources.yolo import Yolo as Yolo
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
