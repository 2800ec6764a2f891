from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.formats.icc_profile import matrix_profile
from tests.helpers import profiles

CURVES = {
    "gamma": (1.8, lambda x: x ** (461 / 256)),
    "table": (profiles.table(0, 16384, 65535), lambda x: np.interp(x, [0, 0.5, 1], [0, 16384 / 65535, 1])),
    "line and power": (
        profiles.parametric(4, 2.0, 0.5, 0.25, 0.125, 0.25, 0.25, 0.0625),
        lambda x: np.where(x >= 0.25, (0.5 * x + 0.25) ** 2 + 0.25, 0.125 * x + 0.0625),
    ),
}


@pytest.mark.parametrize("curve", CURVES)
def test_curves_and_matrix(curve: str) -> None:
    """Each channel has its curve at the 256 levels, and the columns of the matrix are the colorants."""
    tag, function = CURVES[curve]
    found = matrix_profile(profiles.rgb(profiles.ADOBE, tag))
    assert found is not None
    np.testing.assert_allclose(found.curves, np.tile(function(np.linspace(0, 1, 256)), (3, 1)), atol=1e-9)
    np.testing.assert_allclose(found.matrix, profiles.ADOBE, atol=1e-5)


@given(
    st.sampled_from([profiles.rgb(profiles.ADOBE, tag) for tag, _ in CURVES.values()]),
    st.lists(st.tuples(st.integers(0, 700), st.integers(0, 255)), max_size=8),
    st.integers(0, 700),
)
def test_damaged(profile: bytes, changes: list[tuple[int, int]], size: int) -> None:
    """A damaged profile has curves of finite values in 0 … 1, or is none of this kind."""
    damaged = bytearray(profile)
    for place, value in changes:
        damaged[place % len(damaged)] = value
    found = matrix_profile(bytes(damaged[:size]))
    assert found is None or (found.curves.shape == (3, 256) and 0 <= found.curves.min() <= found.curves.max() <= 1)


@pytest.mark.parametrize("profile", [profiles.grey(2.2), profiles.grey_inks(), profiles.rgb(profiles.ADOBE, 2.2)[:300]])
def test_other_profiles(profile: bytes) -> None:
    """Grey and ink profiles, and those that end early, are none of this kind."""
    assert matrix_profile(profile) is None
