"""A transform of the whole sample: image, annotations, texts, labels and columns together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from shardflow._validation import check_callable
from shardflow.errors import ConfigError


class WholeSample:
    """A transform that takes all fields of a sample as a dict, and returns those of the batch.

    Any other `transform` takes the image and its annotations only. Use this if texts or labels must change with them.

    >>> def tokenize(sample):
    ...     caption = sample["txt"].replace("left", "right") if sample["flipped"] else sample["txt"]
    ...     return {"image": sample["image"], "tokens": tokenizer(caption).input_ids}
    >>> transform = shardflow.annotations.WholeSample(tokenize, returns=("image", "tokens"))
    >>> loader = shardflow.Loader(url, batch_size=64, fields=("image", "txt", "flipped"), transform=transform)

    Args:
        transform: Takes a dict of the loader's `fields`: images, masks, boxes and keypoints as tv_tensors (with
            `MultiView` a tuple of them), texts, JSON values and bytes as they are, numbers as Python's. Returns a dict.
            Random numbers depend only on (seed, epoch, sample), as in any transform.
        returns: Keys of the returned dict, which are the fields of a batch, in order; by default the loader's `fields`.
            New fields become a batch by their type: tensors and arrays of one shape are stacked, numbers become a
            tensor [B], anything else a list.

    Raises:
        ConfigError: The transform is not callable, or `returns` is not a sequence of different names.
    """

    def __init__(
        self, transform: Callable[[dict[str, Any]], dict[str, Any]], returns: Sequence[str] | None = None
    ) -> None:
        check_callable("transform", transform, "the dict of a sample's fields")
        is_list = isinstance(returns, Sequence) and not isinstance(returns, str) and len(returns) > 0
        if returns is not None and not (
            is_list and all(isinstance(name, str) for name in returns) and len(set(returns)) == len(returns)
        ):
            raise ConfigError(f"returns must be different names, such as ('image', 'tokens'); found {returns!r}")
        self.transform, self.returns = transform, None if returns is None else tuple(returns)

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the transform's result for a sample."""
        returned = self.transform(sample)
        if not isinstance(returned, dict):
            found = "None (does it lack a `return`?)" if returned is None else type(returned).__qualname__
            raise ConfigError(f"a transform of the whole sample must return a dict, found {found}")
        return returned


def row_of(column: Any, row: int) -> Any:
    """Return one row of a column of a batch: for views a tuple, for a tensor of numbers a Python number."""
    if isinstance(column, tuple):
        return tuple(row_of(view, row) for view in column)
    value = column[row]
    return value.item() if isinstance(value, torch.Tensor) and value.dim() == 0 else value


def join_values(field: str, values: Sequence[Any], like: Any = None) -> Any:
    """Return the values of a field as a column of a batch; numbers get the dtype of `like` if it fits.

    Raises:
        ConfigError: They have different types, dtypes or shapes.
    """
    if isinstance(values[0], tuple) and isinstance(like, tuple):  # of views
        pairs = zip(zip(*values, strict=True), like, strict=True)
        return tuple(join_values(field, view, own) for view, own in pairs)
    if isinstance(like, list):  # of texts, or of a varying number of images
        return list(values)
    of_numpy = (np.ndarray, np.generic)
    values = [torch.as_tensor(each, device="cpu") if isinstance(each, of_numpy) else each for each in values]
    kinds = {type(each) for each in values}
    if not kinds & {torch.Tensor, int, float, bool}:
        return list(values)
    if len(kinds) > 1:
        found = ", ".join(sorted(kind.__name__ for kind in kinds))
        raise ConfigError(f"the transform returns {field!r} as {found}, which do not form a batch; return one type")
    if kinds == {torch.Tensor}:
        if len(forms := {(tuple(each.shape), str(each.dtype)) for each in values}) > 1:
            raise ConfigError(
                f"the transform returns {field!r} as {', '.join(map(str, sorted(forms)[:3]))}, which cannot be "
                "stacked; pad them to one shape, or return lists (tolist()) and join them in batch_transform"
            )
        return torch.stack(list(values))
    is_alike = isinstance(like, torch.Tensor) and type(torch.zeros((), dtype=like.dtype, device="cpu").item()) in kinds
    return torch.tensor(values, dtype=like.dtype if is_alike else None, device="cpu")
