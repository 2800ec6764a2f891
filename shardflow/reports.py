"""Reports: the results of packing, verifying, comparing and copying a dataset."""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from .dataset.columns import ColumnsReport as ColumnsReport
    from .dataset.diffing import Diff as Diff
    from .dataset.diffing import SplitDiff as SplitDiff
    from .dataset.syncing import SyncReport as SyncReport
    from .dataset.verifying import Finding as Finding
    from .dataset.virtual_dataset import VirtualReport as VirtualReport
    from .packing.commit import PackReport as PackReport
    from .packing.removing import RemovalReport as RemovalReport
    from .packing.repairing import RepairReport as RepairReport
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
