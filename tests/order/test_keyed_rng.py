from __future__ import annotations

import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from shardflow.order import keyed_rng
from tests.helpers.examples import examples

KEYS = st.integers(0, 2**64 - 1)
PARTS = st.integers(-(2**63), 2**64 - 1)


def chi_square(counts: np.ndarray) -> float:
    """Pearson's statistic against the uniform distribution."""
    expected = counts.sum() / counts.size
    return float(((counts - expected) ** 2 / expected).sum())


@pytest.mark.parametrize(
    ("parts", "golden"),
    [
        ((), 0x0),
        ((0,), 0x48218226FF3CD4BF),
        ((1,), 0xDCE423FC82C0D5B8),
        ((0, 1), 0xB64E474DDBB33A46),
        ((1, 0), 0x4C5A30CCBF3C7522),
        ((-1,), 0x445018E305810B78),
        ((0, "shards", 3), 0xEF3552C2845D5157),
        (("window",), 0xF10E5DC2C6B1AFCE),
    ],
)
def test_key_is_frozen(parts: tuple[int | str, ...], golden: int) -> None:
    """Keys are the same for ever: saved states and the bytes of datasets depend on them."""
    assert keyed_rng.key(*parts) == golden


@pytest.mark.parametrize(
    ("key", "golden"),
    [
        (0, [2, 4, 6, 8, 5, 1, 7, 0, 9, 3]),
        (2**64 - 1, [9, 2, 7, 3, 4, 8, 5, 0, 1, 6]),
        (keyed_rng.key(7, "x"), [5, 6, 3, 9, 0, 8, 1, 2, 7, 4]),
    ],
)
def test_permutation_is_frozen(key: int, golden: list[int]) -> None:
    """Permutations are the same for ever."""
    assert keyed_rng.permutation(key, 10).tolist() == golden


def test_uniforms_are_the_published_splitmix64() -> None:
    """The numbers of key 0 are the top 53 bits of SplitMix64 seeded with 0, as its authors' code prints it."""
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F, 0xF88BB8A8724C81EC]
    expected = [(bits >> 11) / 2**53 for bits in published]
    assert keyed_rng.uniforms(np.array([0], dtype=np.uint64), 4).tolist() == [expected]


@given(key=KEYS, parts=st.lists(PARTS, max_size=20))
def test_array_and_integer_arithmetic_agree(key: int, parts: list[int]) -> None:
    """`fold_array` is `fold` of each part, for signed and unsigned integers."""
    for dtype in (np.int64, np.uint64):
        kept = [part for part in parts if np.iinfo(dtype).min <= part <= np.iinfo(dtype).max]
        folded = keyed_rng.fold_array(key, np.array(kept, dtype=dtype))
        assert folded.dtype == np.uint64
        assert folded.tolist() == [keyed_rng.fold(key, part) for part in kept]


@given(pairs=st.lists(st.tuples(KEYS, KEYS), max_size=20))
def test_each_part_can_have_its_own_key(pairs: list[tuple[int, int]]) -> None:
    """With an array of keys, `fold_array` folds each part into the key that is beside it."""
    keys, parts = np.array(pairs, dtype=np.uint64).reshape(-1, 2).T
    assert keyed_rng.fold_array(keys, parts).tolist() == [keyed_rng.fold(*pair) for pair in pairs]


@given(key=KEYS, part=st.one_of(PARTS, st.text()))
def test_keys_are_64_bits(key: int, part: int | str) -> None:
    """A folded key is a 64-bit integer, so that it can be folded again and stored in an array."""
    assert 0 <= keyed_rng.fold(key, part) < 2**64


def test_parts_are_not_interchangeable() -> None:
    """No two of many (seed, epoch) share a key, least of all those with the same sum."""
    keys = {keyed_rng.key(seed, epoch) for seed, epoch in itertools.product(range(-150, 150), range(300))}
    assert len(keys) == 300 * 300


def test_words_keep_uses_apart() -> None:
    """A word in a key separates it from all keys with another word, and from numbers."""
    keys = {keyed_rng.key(0, word, n) for word in ("shards", "window", "augment", "batch", 0, 1) for n in range(1000)}
    assert len(keys) == 6 * 1000


@given(key=KEYS, length=st.integers(0, 500))
def test_permutation_has_each_number_once(key: int, length: int) -> None:
    """A permutation of n is an int64 array that holds 0 … n-1, each once."""
    permutation = keyed_rng.permutation(key, length)
    assert permutation.dtype == np.int64
    assert sorted(permutation.tolist()) == list(range(length))


def test_permutations_are_uniform() -> None:
    """Over keys that differ in one part by 1, each of the 24 orders of four things is as likely as the others."""
    orders = list(itertools.permutations(range(4)))
    found = [tuple(keyed_rng.permutation(keyed_rng.key(0, "window", n), 4).tolist()) for n in range(12_000)]
    counts = np.array([found.count(order) for order in orders])
    assert chi_square(counts) < 49.7  # 23 degrees of freedom: one in a thousand


def test_permutations_put_everything_everywhere() -> None:
    """In longer permutations, every place holds every number equally often."""
    counts = np.zeros((16, 16))
    for n in range(8_000):
        counts[np.arange(16), keyed_rng.permutation(keyed_rng.key(3, n), 16)] += 1
    assert all(chi_square(row) < 45 for row in counts)  # 15 degrees of freedom: one in ten thousand
    assert all(chi_square(column) < 45 for column in counts.T)


@given(keys=st.lists(KEYS, max_size=8), count=st.integers(0, 8))
@examples(50)
def test_uniforms_have_a_row_per_key(keys: list[int], count: int) -> None:
    """Each key's numbers lie in [0, 1) and depend on that key alone, and more of them leave the first as they are."""
    numbers = keyed_rng.uniforms(np.array(keys, dtype=np.uint64), count)
    assert numbers.shape == (len(keys), count)
    assert ((numbers >= 0) & (numbers < 1)).all()
    for row, key in zip(numbers, keys, strict=True):
        assert row.tolist() == keyed_rng.uniforms(np.array([key], dtype=np.uint64), count + 3)[0, :count].tolist()


def test_uniforms_are_uniform_and_independent() -> None:
    """Numbers of neighbouring samples fill the unit square evenly, in one column and across columns."""
    numbers = keyed_rng.uniforms(keyed_rng.fold_array(keyed_rng.key(0, "augment", 0), np.arange(50_000)), 2)
    neighbours = np.stack([numbers[:-1, 0], numbers[1:, 0]], axis=1)
    for pairs in (numbers, neighbours):
        counts, *_ = np.histogram2d(pairs[:, 0], pairs[:, 1], bins=16, range=((0, 1), (0, 1)))
        assert chi_square(counts) < 330  # 255 degrees of freedom: one in a thousand
