"""Annotations: which parts of a sample are masks, boxes and keypoints, so that they follow its crops and transforms."""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from .formats.annotations import Annotations as Annotations
    from .formats.annotations import Boxes as Boxes
    from .formats.annotations import Keypoints as Keypoints
    from .geometry.objects import CroppedBoxes as CroppedBoxes
    from .loading.whole_sample import WholeSample as WholeSample
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
