"""Columns: values per sample, such as captions, scores and embeddings, added to a dataset without rewriting its tars.

`Loader(fields=("image", "caption"))` returns them; `samplers.Weighted("score")` takes weights from one.
"""

from typing import TYPE_CHECKING

from ._imports import lazy_names

if TYPE_CHECKING:
    from .dataset.columns import add as add
    from .dataset.columns import compute as compute
    from .dataset.columns import drop as drop
    from .dataset.sample_table import to_parquet as to_parquet
    from .loading.column_fields import Filled as Filled
else:
    __getattr__, __dir__, __all__ = lazy_names(__name__)
