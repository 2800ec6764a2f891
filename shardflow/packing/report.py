"""The report: what a pack is doing, and what it did."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """How far a pack is.

    Attributes:
        inputs: Number of all inputs.
        resumed: Inputs that an earlier attempt had done.
        done: Inputs that are packed or quarantined by now, the resumed ones included.
        bytes_in, bytes_out: Packed by this attempt: read, and written.
    """

    inputs: int
    resumed: int
    done: int
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PackReport:
    """What a pack did. `inputs` is always the sum of `packed` and `quarantined`.

    Attributes:
        fingerprint: The dataset's identity.
        inputs, packed, quarantined: Numbers of images.
        reasons: Why inputs were quarantined → how many; figures in the reasons are left out.
        ignored: Extension → number of files that are no inputs because of it.
        shards: Number of shards.
        bytes_in, bytes_out: Size of the packed inputs, and of the shards.
        counts: What was done to how many images, as `Statistics.counts` has it: turned, converted, first frames, ...
        resumed: Inputs that an earlier attempt had done.
        seconds: Duration of this attempt.
    """

    fingerprint: str
    inputs: int
    packed: int
    quarantined: int
    reasons: Mapping[str, int]
    ignored: Mapping[str, int]
    shards: int
    bytes_in: int
    bytes_out: int
    counts: Mapping[str, int]
    resumed: int = 0
    seconds: float = 0.0
