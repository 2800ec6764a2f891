"""Errors of the user's code arrive as they were raised; the death of a worker is told apart from them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import traceback
from collections.abc import Sequence
from operator import methodcaller
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image, ImageOps
from torch import nn
from torchvision import transforms as v1
from torchvision.transforms import v2

import shardflow
from shardflow._signals import FOR_THE_JOB
from shardflow.errors import ConfigError, WorkerError
from shardflow.loading.worker_errors import SentError
from tests.helpers.loading import PROJECT, with_workers
from tests.helpers.making import make_dataset
from tests.helpers.warm_python import python


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of 12 samples in one shard."""
    return make_dataset(tmp_path_factory.mktemp("data") / "set", [12])


class OddError(Exception):
    """An exception that pickle cannot build again from its arguments."""

    def __init__(self, left: int, right: int) -> None:
        super().__init__(f"{left} is not {right}")
        self.left = left


class Fails:
    """A transform or batch transform that raises an error after a number of calls."""

    def __init__(self, error: Exception, at: int = 0) -> None:
        self.error, self.left = error, at

    def __call__(self, image: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
        """Raise it."""
        self.left -= 1
        return self.compute() if self.left < 0 else image

    def compute(self) -> torch.Tensor:
        """Raise it from one call further down."""
        raise self.error


class FailsToDecode(shardflow.decoders.CenterCrop):
    """A decoder that raises an error."""

    def __init__(self, error: Exception) -> None:
        super().__init__(8)
        self.error = error

    def decode(self, payloads: Any, crops: Any, out: Any) -> Any:  # noqa: ARG002 - it never decodes
        """Raise it."""
        raise self.error


class Returns:
    """A transform with a certain result."""

    def __init__(self, result: Any) -> None:
        self.result = result

    def __call__(self, *_: torch.Tensor) -> Any:
        """Return it."""
        return self.result


class Ends:
    """A transform that ends its worker with an exit code or a signal."""

    def __init__(self, code: int) -> None:
        self.code = code

    def __call__(self, image: torch.Tensor) -> torch.Tensor:
        """End the process."""
        if self.code >= 0:
            os._exit(self.code)
        if -self.code in FOR_THE_JOB:
            signal.signal(-self.code, signal.SIG_DFL)
        os.kill(os.getpid(), -self.code)
        return image


def loader(url: Path, **options: Any) -> shardflow.Loader:
    """A loader in the split's order."""
    small = {"batch_size": 4, "num_workers": 1, "shuffle": False, "decoder": shardflow.decoders.CenterCrop(8)}
    return shardflow.Loader(url, **with_workers({**small, **options}))


@pytest.mark.parametrize("context", ["fork", "forkserver", None])
def test_an_error_of_a_transform_arrives_as_it_is(dataset: Path, context: str | None) -> None:
    """A RuntimeError of a transform is that error, with its traceback and a note of sample, shard and worker."""
    some = loader(
        dataset,
        transform=Fails(RuntimeError("boom"), at=6),
        num_workers=int(context is not None),
        multiprocessing_context=context,
    )
    with pytest.raises(RuntimeError, match="boom") as caught:
        list(some)
    assert str(caught.value) == "boom"
    assert [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)][-2:] == ["__call__", "compute"]
    assert traceback.extract_tb(caught.value.__traceback__)[-1].line == "raise self.error"
    assert "Traceback" not in "".join(traceback.format_exception(caught.value)).partition("Traceback")[2]
    place = f"raised by the transform, for sample 000000006 of {dataset}/train/000000.tar"
    if sys.version_info >= (3, 11):
        assert caught.value.__notes__ == [f"shardflow: {place}{', in worker 0' if context else ''}"]


@pytest.mark.parametrize(
    ("argument", "what"), [("decoder", "the decoder"), ("batch_transform", "batch_transform")], ids=str
)
def test_errors_of_decoder_and_batch_transform_name_the_batch(dataset: Path, argument: str, what: str) -> None:
    """They are errors for a batch, which is named by its first sample."""
    error = ValueError("boom")
    some = loader(dataset, **{argument: FailsToDecode(error) if argument == "decoder" else Fails(error)})
    with pytest.raises(ValueError, match="boom") as caught:
        list(some)
    if sys.version_info >= (3, 11):
        (note,) = caught.value.__notes__
        assert note.startswith(f"shardflow: raised by {what}, for the batch of sample 000000000 of {dataset}/train/")
        assert note.endswith("000000.tar and 3 more, in worker 0")


@pytest.mark.parametrize(
    ("transform", "remedy"),
    [
        (v1.ToTensor(), "v2.ToDtype(torch.float32, scale=True)"),
        (v2.Normalize([0.5], [0.5]), "v2.ToDtype(torch.float32, scale=True)"),
        (ImageOps.equalize, "v2.ToPILImage()"),
        (methodcaller("rotate", 90), "v2.ToPILImage()"),
    ],
    ids=("ToTensor", "Normalize", "ImageOps", "rotate"),
)
def test_a_transform_of_pictures_is_told_what_it_gets(dataset: Path, transform: Any, remedy: str) -> None:
    """The error of a transform that expects a PIL image, or floats, has a note with the one that makes them."""
    with pytest.raises((TypeError, OSError, AttributeError)) as caught:
        list(loader(dataset, transform=v2.Compose([nn.Identity(), v2.Lambda(transform)]), num_workers=0))
    if sys.version_info >= (3, 11):
        assert remedy in caught.value.__notes__[1]
    (images, _), *_ = loader(dataset, transform=v2.ToDtype(torch.float32, scale=True), num_workers=0)
    assert images.dtype == torch.float32


def test_a_transform_of_image_and_label_is_refused(dataset: Path) -> None:
    """A transform that needs two arguments is an error when the loader is made, and the message says what it gets."""
    with pytest.raises(ConfigError, match=r"gets one argument, the image.*WholeSample.*takes \(image, label\)"):
        loader(dataset, transform=lambda image, label: (image, label))
    with pytest.raises(ConfigError, match=r"gets one argument, the dict .* takes \(left, right\)"):
        shardflow.annotations.WholeSample(lambda left, right: left | right)  # type: ignore[arg-type, misc]


def test_errors_that_pickle_cannot_copy_arrive_too() -> None:
    """An error keeps its type, attributes and cause where that is possible; else it is a RuntimeError with its text."""

    class LocalError(Exception):
        pass

    try:
        try:
            raise OddError(1, 2)
        except OddError as odd:
            raise LocalError("here") from odd
    except LocalError as error:
        received = SentError(error).error()
    assert type(received) is RuntimeError
    assert str(received).endswith("LocalError: here")
    cause = received.__cause__
    assert isinstance(cause, OddError)
    assert (str(cause), cause.left) == ("1 is not 2", 1)


@pytest.mark.parametrize(
    ("result", "found"),
    [(None, r"None \(does it lack a `return`\?\)"), (Image.new("RGB", (8, 8)), "PIL.Image.Image"), ([1], "list$")],
    ids=("nothing", "picture", "list"),
)
def test_a_transform_must_return_a_tensor(dataset: Path, result: Any, found: str) -> None:
    """Anything else is a ConfigError that names what came, and the sample."""
    with pytest.raises(ConfigError, match=f"sample 000000000: transform must return a tensor; got {found}"):
        list(loader(dataset, transform=Returns(result)))


def test_a_batch_transform_must_return_the_batch(dataset: Path) -> None:
    """A batch transform without a `return` is a ConfigError."""
    with pytest.raises(ConfigError, match=r"batch_transform returned None"):
        list(loader(dataset, batch_transform=Returns(None)))


def test_floats_can_be_mixed_in_a_worker(dataset: Path) -> None:
    """MixUp, which computes in floats, works as documented: images are converted before it."""
    to_float: Sequence[Any] = [v2.ToDtype(torch.float32, scale=True), v2.MixUp(num_classes=12)]
    images, labels = next(iter(loader(dataset, batch_transform=v2.Compose(to_float))))
    assert (images.dtype, tuple(labels.shape)) == (torch.float32, (4, 12))


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (-signal.SIGKILL, "too little memory or too small a /dev/shm"),
        (-signal.SIGSEGV, r"native code crashed there \(SIGSEGV\)"),
        *((-number, f"{number.name} ended it: Slurm .*--signal.*Kubernetes") for number in FOR_THE_JOB),
        (3, r"it ended with exit code 3, .* error\. "),
        (1, "it ended with exit code 1.*`if __name__"),
    ],
)
def test_memory_is_suspected_only_where_a_worker_was_killed(dataset: Path, code: int, reason: str) -> None:
    """The error for a worker that ended says how it ended, and which batch it was at, in one traceback."""
    with pytest.raises(WorkerError, match=f"{reason}.*Batches in progress: worker 0: .*sample 000000000") as caught:
        list(loader(dataset, transform=Ends(code)))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    assert ("memory" in str(caught.value)) == (code == -signal.SIGKILL)


UNGUARDED = """
import shardflow
workers = shardflow.Workers(1, multiprocessing_context={context!r})
for batch in shardflow.Loader({url!r}, batch_size=4, num_workers=workers):
    pass
"""


def test_a_script_without_a_guard_is_told_so(dataset: Path, tmp_path: Path) -> None:
    """Under spawn one traceback, of the script itself, ends in the line that it lacks."""
    script = tmp_path / "unguarded.py"
    script.write_text(UNGUARDED.format(url=str(dataset), context="spawn"))
    done = subprocess.run([python(), script], capture_output=True, text=True, check=False, cwd=PROJECT)
    assert done.stderr.count("Traceback") == 1
    assert done.stderr.splitlines()[-1].startswith("shardflow.errors.ConfigError: workers that are not forked run")
    assert 'if __name__ == "__main__"' in done.stderr


def test_a_script_on_standard_input_is_refused(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Workers that would run it again do not find it, which the error says when the loader is made."""
    monkeypatch.setattr(sys.modules["__main__"], "__spec__", None)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/nowhere/<stdin>", raising=False)
    with pytest.raises(ConfigError, match=r"'spawn' run .* and /nowhere/<stdin> is not a file: .*`if __name__"):
        loader(dataset, multiprocessing_context="spawn")
    loader(dataset, multiprocessing_context="fork")


def test_what_workers_cannot_import_is_refused_when_the_loader_is_made(dataset: Path) -> None:
    """A lambda, and a class that is defined in a session without a file, are refused unless workers are forked."""
    with pytest.raises(ConfigError, match=r"transform .*'spawn'.*lambda"):
        loader(dataset, transform=lambda image: image, multiprocessing_context="spawn")
    loader(dataset, transform=lambda image: image, multiprocessing_context="fork")
    session = f"""
import shardflow
class Mine:
    def __call__(self, image):
        return image
def make(context):
    workers = shardflow.Workers(1, multiprocessing_context=context)
    return shardflow.Loader({str(dataset)!r}, batch_size=4, num_workers=workers, transform=Mine())
make("fork")
try:
    make("forkserver")
except shardflow.errors.ConfigError as error:
    print(error)
"""
    done = subprocess.run([python(), "-c", session], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert done.stdout.startswith(
        "transform is defined in this session, where workers that are started by 'forkserver'"
    )
