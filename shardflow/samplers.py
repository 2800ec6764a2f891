"""Samplers for `Loader(sampler=...)`, and the base classes of your own.

A sampler is any object with `bind(facts) -> EpochSampler`. It chooses the samples of an epoch, their order and batches.
"""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from .order.aspect_buckets import AspectBuckets as AspectBuckets
    from .order.class_batches import ClassBatches as ClassBatches
    from .order.mixture import temperature_weights as temperature_weights
    from .order.sampler import EpochPlan as EpochPlan
    from .order.sampler import EpochSampler as EpochSampler
    from .order.sampler import Facts as Facts
    from .order.sampler import ListPlan as ListPlan
    from .order.sampler import Sampler as Sampler
    from .order.subset_sampler import Subset as Subset
    from .order.token_budget import TokenBudget as TokenBudget
    from .order.weighted import Weighted as Weighted
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
