"""Token budgets: samples are packed into bins with a limit of tokens, and a position is a bin.

    streams   the samples in shuffled order, cut into streams as without bins
    windows   sections of a stream, each packed by first fit decreasing
    bins      of a window, permuted by hash(seed, epoch); position p has a bin of stream p % C, so that a rank reads the
              same shards as without bins. Streams with too many bins pass some to others
    length    equal in every epoch, so that arithmetic finds any position of any epoch: the bins of a reference order
              plus 1/512. If an epoch needs fewer bins, some are cut in two. If it needs more, windows span several
              streams, and at last all samples; then the bins suffice, because the number of bins that first fit
              decreasing needs depends only on the lengths

The tokens of an image follow from the index, those of a text from a column: no shard is read for a plan.
"""

from __future__ import annotations

import hashlib
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from shardflow._validation import check_integer
from shardflow._wording import plural
from shardflow.errors import ConfigError

from . import keyed_rng
from .bin_packing import bins_needed, first_fit_decreasing
from .keyed_rng import I64
from .sampler import EpochPlan, EpochSampler, Facts, known_sizes, per_sample, shard_spans
from .shuffle_plan import ShuffledEpochs
from .shuffle_settings import BUFFER

MOST_TOKENS = 1 << 24
_CHUNK_SAMPLES = 1 << 21
_SPARE = 512

I32 = npt.NDArray[np.int32]


class TokenBudget:
    """Packs samples into bins of at most `tokens` tokens; `batch_size` counts bins.

    Each sample comes once in an epoch. All epochs have the same number of bins, as have all ranks in a step. An image
    has a token per patch: `decoders.Patches` resizes its sides to the nearest multiples of `patch`. The tokens of texts
    are given by `text`.

    >>> sampler = shardflow.samplers.TokenBudget(8192, patch=16, text="caption_tokens", long_side=512)
    >>> loader = shardflow.Loader(url, batch_size=4, sampler=sampler, fields=("image", "cu_seqlens", "caption"))

    Args:
        tokens: Maximum number of tokens in a bin, 1 … 16,777,216.
        patch: Height and width in pixels of an image token, such as 28 if a model merges 2 x 2 patches of 14; None to
            count texts only.
        text: Tokens of each text, whole numbers of 0 or more: the name of a column, a number per sample ([N], or the
            path of a `.npy`), or one for all.
        long_side: Larger images are reduced to this long side, in pixels; `patch` or more.
        oversize: "shrink" reduces images that do not fit into a bin with their text; "drop" leaves such samples out.
            Samples whose text alone does not fit are left out in both cases. A warning gives their number.
        window: Samples of a stream that are packed together, 1 … 2**40. A larger window wastes fewer tokens, a smaller
            one keeps fewer shards open.

    Raises:
        ConfigError: A value is out of its range, or neither images nor texts have tokens.
    """

    def __init__(
        self,
        tokens: int,
        *,
        patch: int | None = 16,
        text: npt.ArrayLike | str | None = None,
        long_side: int | None = None,
        oversize: str = "shrink",
        window: int = BUFFER,
    ) -> None:
        self.tokens = check_integer("tokens", tokens, 1, MOST_TOKENS)
        self.patch = None if patch is None else check_integer("patch", patch, 1)
        self.text, self.oversize, self.window = text, oversize, check_integer("window", window, 1, 1 << 40)
        self.long_side = None if long_side is None else check_integer("long_side", long_side, self.patch or 1)
        if oversize not in ("shrink", "drop"):
            raise ConfigError(f"oversize must be 'shrink' or 'drop', found {oversize!r}")
        if patch is None and (text is None or long_side is not None):
            raise ConfigError("with patch=None only texts have tokens: give text=, and leave long_side out")

    def __repr__(self) -> str:
        text = "" if self.text is None else f", text={self.text!r:.40}"
        return f"TokenBudget({self.tokens}, patch={self.patch}{text})"

    def bind(self, facts: Facts) -> EpochSampler:
        """Return epochs of bins."""
        lengths = np.zeros(facts.samples, dtype=np.int64)
        if self.text is not None:
            texts = per_sample(facts, self.text, "TokenBudget(text=...)")
            if texts.ndim != 1 or texts.dtype.kind not in "iu" or (len(texts) and int(texts.min()) < 0):
                raise ConfigError(
                    f"text={self.text!r:.40}: tokens must be whole numbers of 0 or more, one per sample; found "
                    f"{texts.dtype} of shape {texts.shape}"
                )
            lengths += np.minimum(texts.astype(np.uint64), np.uint64(self.tokens + 1)).astype(np.int64)
        grids = np.zeros((0, 2), dtype=np.int32)
        is_shrunk = np.zeros(len(lengths), dtype=np.bool_)
        if self.patch is not None:
            sizes = known_sizes(facts, "TokenBudget")
            wanted = patch_grids(sizes, self.patch, self.long_side)
            fitting = shrunk_grids(wanted, sizes, self.tokens - lengths) if self.oversize == "shrink" else wanted
            is_shrunk = (fitting != wanted).any(axis=1)
            grids = fitting.astype(np.int32)
            lengths += fitting.prod(axis=1)
        lengths = np.maximum(lengths, 1)
        dropped = lengths > self.tokens
        lengths[dropped] = 0
        epochs = TokenEpochs(facts, self, lengths.astype(np.int32), grids)
        for count, what in (
            (int(dropped.sum()), "do not fit and are left out"),
            (int((is_shrunk & ~dropped).sum()), "fit only with smaller images"),
        ):
            if count:
                epochs.warnings.append(f"{self!r}: {plural(count, 'sample')} of {facts.samples} {what}; raise tokens")
        return epochs


def patch_grids(sizes: I64, patch: int, long_side: int | None = None) -> I64:
    """Return rows and columns of patches, int64 [N, 2], of images of width and height `sizes`; each has one or more."""
    heights_widths = np.maximum(sizes[:, ::-1], 1)
    longest = heights_widths.max(axis=1, keepdims=True)
    least = longest if long_side is None else np.minimum(longest, long_side)
    grids: I64 = (2 * heights_widths * least + patch * longest) // (2 * patch * longest)
    return np.minimum(np.maximum(grids, 1), longest if long_side is None else long_side // patch)


def shrunk_grids(grids: I64, sizes: I64, most: I64) -> I64:
    """Return grids, shrinking those of more than `most` patches in proportion, down to one patch."""
    large = grids.prod(axis=1) > np.maximum(most, 1)
    most, sides = np.maximum(most[large], 1), sizes[large, ::-1].astype(np.float64)
    smaller = np.maximum(sides * np.sqrt(most / sides.prod(axis=1))[:, None], 1).astype(np.int64)
    # If one side was raised to a patch, the other may be too long.
    smaller[:, 1] = np.minimum(smaller[:, 1], most)
    smaller[:, 0] = np.minimum(smaller[:, 0], most // smaller[:, 1])
    fitting: I64 = grids.copy()
    fitting[large] = smaller
    return fitting


class _Bins(NamedTuple):
    """The bins of an epoch, before they have positions.

    Attributes:
        samples: Numbers of the samples in the split, bin after bin.
        starts: Where each bin begins in `samples`.
        places: The position of each bin's first sample in the shuffled order.
        streams: The stream of each bin.
        windows: The window of each bin within its stream.
    """

    samples: npt.NDArray[Any]
    starts: I64
    places: I64
    streams: I64
    windows: I64


class TokenEpochs(EpochSampler):
    """The epochs of a split in bins.

    Args:
        facts: The facts of the run.
        budget: The settings.
        lengths: Tokens of each sample, 0 for samples that are left out.
        grids: Rows and columns of patches of each image; empty if images have no tokens.

    Attributes:
        left_out: Number of samples that are left out.
        fill: The share of the bins' capacity that is used.
    """

    def __init__(self, facts: Facts, budget: TokenBudget, lengths: I32, grids: I32) -> None:
        self._stream, self._lengths, self._grids = ShuffledEpochs(facts), lengths, grids
        self._tokens, self._window, self.patch = budget.tokens, budget.window, budget.patch or 0
        self._ends = np.cumsum(facts.shard_samples)
        self._shuffles = facts.shuffle is not None
        self.warnings: list[str] = []
        sha = hashlib.sha256(lengths.astype("<i4", copy=False).data)
        sha.update(grids.astype("<i4", copy=False).data)
        self.identity = {
            "token_budget": [budget.tokens, budget.patch, budget.long_side, budget.oversize, budget.window],
            "lengths": sha.hexdigest(),
        }
        packed = lengths[lengths > 0]
        self.left_out = len(lengths) - len(packed)
        if not len(packed):
            raise ConfigError(f"{budget!r}: no sample of split {facts.split!r} fits; raise tokens")
        reference = len(self._pack(self._stream.plan(seed=0, epoch=0, streams=1), 1, self._window).starts)
        fewest = bins_needed(packed, self._tokens)
        spare = reference // _SPARE if self._shuffles else 0
        self.length = min(len(packed), max(fewest, reference + spare))
        self.fill = int(packed.sum(dtype=np.int64)) / (self.length * self._tokens)

    def image_shapes(self, samples: I64) -> I64 | None:
        """Return height and width of images in pixels."""
        return self._grids[samples].astype(np.int64) * self.patch if self.patch else None

    def plan(self, *, seed: int, epoch: int, streams: int) -> EpochPlan:
        """Return the bins of an epoch, in order."""
        stream, window = self._stream.plan(seed=seed, epoch=epoch, streams=streams), self._window
        while streams > 1 and stream.length // streams < window:
            streams = _fewer(streams)
        while len((bins := self._pack(stream, streams, window)).starts) > self.length:
            streams, window = _fewer(streams), window if streams > 1 else stream.length
        bins = _cut(bins, self.length)
        ties = keyed_rng.fold_array(keyed_rng.key(seed, "bins", epoch), np.arange(self.length))
        order = np.lexsort((ties if self._shuffles else bins.places, bins.windows, bins.streams))
        counts = np.diff(bins.starts, append=len(bins.samples))[order]
        positions = _positions(bins.streams[order], streams)
        starts = np.empty((2, self.length), dtype=np.int64)
        starts[:, positions] = bins.starts[order], counts
        return TokenPlan(bins.samples, starts[0], starts[1], self._ends)

    def _pack(self, stream: EpochPlan, streams: int, window: int) -> _Bins:
        """Pack the samples of each stream, window by window."""
        firsts = np.concatenate([[0], self._ends])
        row = streams * min(window, -(-stream.length // streams))  # positions of one window of each stream
        rows = max(1, _CHUNK_SAMPLES // row)
        dtype = np.int32 if self._ends[-1] < 1 << 31 else np.int64
        parts: list[tuple[npt.NDArray[Any], ...]] = []
        for begin in range(0, stream.length, rows * row):
            positions = np.arange(begin, min(begin + rows * row, stream.length))
            shards, records, _ = stream.visits(positions)
            samples = firsts[shards] + records
            lengths = self._lengths[samples]
            fits = lengths > 0
            positions, samples, lengths = positions[fits], samples[fits], lengths[fits]
            bins = first_fit_decreasing(
                lengths, self._tokens, (positions - begin) // row * streams + positions % streams
            )
            order = np.argsort(bins, kind="stable")
            counts = np.bincount(bins)
            places = positions[order][np.cumsum(counts) - counts]
            parts.append((samples[order].astype(dtype), counts, places))
        samples, counts, places = (np.concatenate(column) for column in zip(*parts, strict=True))
        return _Bins(samples, np.cumsum(counts) - counts, places, places % streams, places // row)


def _fewer(streams: int) -> int:
    """Return the largest proper divisor of the number of streams."""
    return next((streams // by for by in range(2, streams + 1) if streams % by == 0), 1)


def _cut(bins: _Bins, length: int) -> _Bins:
    """Return `length` bins, by cutting some in two, spread over the epoch."""
    if not (missing := length - len(bins.starts)):
        return bins
    inside = np.ones(len(bins.samples), dtype=np.bool_)
    inside[bins.starts] = False
    within = np.flatnonzero(inside)
    cuts = within[np.arange(missing) * len(within) // missing]
    starts = np.sort(np.concatenate([bins.starts, cuts]))
    of = np.searchsorted(bins.starts, starts, side="right") - 1
    return _Bins(bins.samples, starts, bins.places[of], bins.streams[of], bins.windows[of])


def _positions(numbers: I64, streams: int) -> I64:
    """Return a position p for each bin, given ascending stream numbers: p % `streams` is its stream if possible."""
    length = len(numbers)
    firsts = np.searchsorted(numbers, np.arange(streams))
    ranks = np.arange(length) - firsts[numbers]
    own = ranks < length // streams + (numbers < length % streams)
    positions = ranks * streams + numbers
    free = np.ones(length, dtype=np.bool_)
    free[positions[own]] = False
    positions[~own] = np.flatnonzero(free)
    return positions


class TokenPlan(EpochPlan):
    """The bins of one epoch.

    Args:
        samples: Numbers in the split.
        starts, counts: For the bin at each position, where its samples begin in `samples`, and their number.
        ends: Where each shard ends in the split, in samples.
    """

    def __init__(self, samples: npt.NDArray[Any], starts: I64, counts: I64, ends: I64) -> None:
        self.length, self._samples, self._starts, self._counts, self._ends = len(starts), samples, starts, counts, ends
        self._firsts = np.concatenate([[0], ends])

    def counts(self, positions: npt.NDArray[Any]) -> I64:
        """Return the number of samples in each bin."""
        counts: I64 = self._counts[positions]
        return counts

    def visits(self, positions: npt.NDArray[Any]) -> tuple[I64, I64, I64]:
        """Return (shard, record, repeat) of the samples of bins."""
        counts = self._counts[positions]
        begins = np.cumsum(counts) - counts
        places = np.repeat(self._starts[positions] - begins, counts) + np.arange(int(counts.sum()))
        samples = self._samples[places].astype(np.int64)
        shards: I64 = np.searchsorted(self._ends, samples, side="right")
        return shards, samples - self._firsts[shards], np.zeros_like(samples)

    def needs(self, rank: int, world_size: int) -> tuple[I64, I64, I64]:
        """Return the shards of a rank's positions, and when they are read."""
        positions = np.arange(rank, self.length, world_size)
        ends = np.cumsum(self._counts[positions])
        shards, begins, stops = shard_spans(self.visits(positions)[0])
        first, last = (np.searchsorted(ends, places, side="right") for places in (begins, stops - 1))
        return shards, positions[first], positions[last] + 1
