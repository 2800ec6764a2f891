"""Weather: faults that hit requests at random."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence

from tests.helpers.s3_matrix import FAULTS, FINAL, RANGES
from tests.helpers.s3_proxy import Fault, Rule

_SLOW = ("hang", "hang, and it was done", "hang in the body", "drip")
_DAMAGE = "flipped bit"
PROMPT = tuple(fault for name, (fault, _) in FAULTS.items() if name not in FINAL | RANGES | {*_SLOW, _DAMAGE})
"""Faults that retries survive, however often they happen. Not damage: it is always the same bit, as if stored so."""
SLOW = tuple(FAULTS[name][0] for name in _SLOW)
"""The same, but noticed only by a deadline, after 8 to 15 seconds with a loader's retry policy."""
ANY = (*PROMPT, FAULTS[_DAMAGE][0]) * 8 + SLOW
"""All faults; the slow ones rarely, so that the time allows many; damage too rarely for one blob four times."""
_NAMES = {fault: name for name, (fault, _) in FAULTS.items()}


class Weather(Rule):
    """A rule of the proxy: a share of all requests meets one fault or another.

    The same seed draws the same numbers; which request meets which of them depends on the order in which they arrive.
    """

    def __init__(self, faults: Sequence[Fault], share: float, seed: int) -> None:
        super().__init__(Fault())
        self._faults, self._share, self._random = faults, share, random.Random(seed)
        self.met: Counter[str] = Counter()  # how many requests met a fault, by its name

    def applies(self, method: str, target: str) -> bool:
        """Draw whether this request meets a fault, and which."""
        if not super().applies(method, target) or self._random.random() >= self._share:
            return False
        self.fault = self._random.choice(self._faults)
        self.met[_NAMES[self.fault]] += 1
        return True
