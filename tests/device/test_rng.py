from __future__ import annotations

import shutil

import numpy as np
import pytest
import torch

from shardflow.device.transforms import rng
from shardflow.order import keyed_rng
from tests.helpers.device import kolmogorov_smirnov, random_keys


def test_the_hash_is_that_of_the_core() -> None:
    """Folding and drawing in torch gives the bits that the core's numpy gives, to the precision of a float32."""
    keys = random_keys(50)
    unsigned = keys.numpy().view(np.uint64)
    for part in (0, 1, 12345):
        expected = [keyed_rng.fold(key, part) for key in unsigned.tolist()]
        assert rng.fold(keys, part).numpy().view(np.uint64).tolist() == expected
    expected_uniforms = np.floor(keyed_rng.uniforms(unsigned, 7) * 2**24) / 2**24
    assert (rng.uniforms(keys, 7).numpy() == expected_uniforms).all()


def test_golden_values() -> None:
    """The numbers are frozen: a new version draws what the old one drew."""
    keys = random_keys(3)
    assert (rng.uniforms(keys, 2) * 2**24).to(torch.int64).tolist() == GOLDEN


GOLDEN = [[1971807, 4133157], [8515448, 1103489], [15242729, 7277938]]


def test_normals_are_normal() -> None:
    """The numbers have the moments of a standard normal distribution."""
    drawn = rng.uniforms(random_keys(50_000), 2)
    normal = rng.normals(drawn[:, 0], drawn[:, 1])
    moments = [float((normal**power).mean()) for power in (1, 2, 3, 4)]
    assert moments == pytest.approx([0, 1, 0, 3], abs=0.1)


@pytest.mark.parametrize("alpha", [0.1, 0.2, 0.8, 1.0, 3.0])
def test_beta_is_distributed_as_torchs(alpha: float) -> None:
    """Numbers for any alpha are distributed as those of torch.distributions.Beta, and are within 0 … 1."""
    ours = rng.symmetric_beta(random_keys(20_000), alpha)
    assert ours.isfinite().all()
    assert ours.min() >= 0
    assert ours.max() <= 1
    torch.manual_seed(0)
    # At the ends numbers differ by how floats are rounded there, not by how likely they are.
    theirs = torch.distributions.Beta(alpha, alpha).sample((20_000,))
    assert kolmogorov_smirnov(ours.clamp(1e-6, 1 - 1e-6), theirs.clamp(1e-6, 1 - 1e-6)) < 2


@pytest.mark.filterwarnings("ignore:Skipping serialization of:UserWarning")  # of PyTorch 2.6, about its own settings
def test_compiled_numbers_are_the_same() -> None:
    """Compiled to machine code, wrapping arithmetic still wraps: the numbers are equal bit for bit."""
    if shutil.which("g++") is None:
        pytest.skip("needs a C++ compiler")

    def some(keys: torch.Tensor) -> torch.Tensor:
        return rng.uniforms(rng.fold(keys, 3), 23)[:, 3:7]

    # What would take most of the time: processes that compile, headers for later, a test whether vectors compile.
    known = torch._inductor.list_options()
    saving = {"compile_threads": 1, "cpp_cache_precompile_headers": False, "cpp.vec_isa_ok": True}
    options = {name: value for name, value in saving.items() if name in known}
    keys = random_keys(8)
    assert torch.equal(torch.compile(some, fullgraph=True, options=options)(keys), some(keys))
