"""Samplers: what `Loader(sampler=...)` takes, and what is needed to write another.

A sampler is any object with `bind(facts) -> EpochSampler`; it decides which samples make an epoch, in which order, and
how they form batches.
"""

from .order.aspect_buckets import AspectBuckets
from .order.class_batches import ClassBatches
from .order.list_plan import ListPlan
from .order.sampler import EpochPlan, EpochSampler, Facts, Sampler
from .order.subset_sampler import Subset
from .order.weighted import Weighted

__all__ = [
    "AspectBuckets",
    "ClassBatches",
    "EpochPlan",
    "EpochSampler",
    "Facts",
    "ListPlan",
    "Sampler",
    "Subset",
    "Weighted",
]
