"""The rows of the table: every loader, in each of the ways that were thought worth measuring."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One loader used in one way.

    Attributes:
        name: As in the table; unique.
        peer, variant: The file in `peers/`, and what it is told.
        environment: Which environment it runs in.
        package: Whose version the table names.
        data: Which of the prepared formats it reads, by the peer that wrote it.
        variables: Of the process's environment.
        keep_uint8: Do not normalise: the images are to stay uint8 until they are on a GPU.
    """

    name: str
    peer: str
    variant: str
    package: str
    environment: str = "common"
    data: str = ""
    variables: tuple[tuple[str, str], ...] = ()
    keep_uint8: bool = False

    @property
    def reads(self) -> str:
        """The peer whose format it reads."""
        return self.data or self.peer


PATIENT_THREADS = (("OMP_WAIT_POLICY", "passive"),)
"""By default FFCV's threads spin while they wait for each other, on cores that the main process could use."""

ROWS = (
    Row(name="ImageFolder, PIL", peer="imagefolder", variant="pil", package="torchvision"),
    Row(
        name="ImageFolder, tensors, floats handed over",
        peer="imagefolder",
        variant="tensors-float",
        package="torchvision",
    ),
    Row(name="ImageFolder, tensors", peer="imagefolder", variant="tensors", package="torchvision"),
    Row(name="webdataset, PIL", peer="webdataset", variant="pil", package="webdataset", data="shardflow"),
    Row(name="webdataset, tensors", peer="webdataset", variant="tensors", package="webdataset", data="shardflow"),
    Row(
        name="webdataset, tensors, DataLoader's batches",
        peer="webdataset",
        variant="tensors-collated",
        package="webdataset",
        data="shardflow",
    ),
    Row(
        name="MosaicML Streaming, tensors",
        peer="mosaicml",
        variant="tensors",
        package="mosaicml-streaming",
        environment="mosaicml-litdata",
    ),
    Row(name="LitData, tensors", peer="litdata", variant="tensors", package="litdata", environment="mosaicml-litdata"),
    Row(name="HF datasets, tensors", peer="huggingface", variant="tensors", package="datasets"),
    Row(name="Energon, tensors", peer="energon", variant="tensors", package="megatron-energon", environment="energon"),
    Row(name="SPDL, tensors", peer="spdl", variant="tensors", package="spdl", data="imagefolder"),
    Row(
        name="FFCV",
        peer="ffcv",
        variant="float",
        package="ffcv",
        environment="ffcv",
        variables=PATIENT_THREADS,
    ),
    Row(
        name="FFCV, uint8",
        peer="ffcv",
        variant="uint8",
        package="ffcv",
        environment="ffcv",
        variables=PATIENT_THREADS,
        keep_uint8=True,
    ),
    Row(name="DALI, full decode", peer="dali", variant="full", package="nvidia-dali-cuda130", data="shardflow"),
    Row(name="DALI, crop decode", peer="dali", variant="crop", package="nvidia-dali-cuda130", data="shardflow"),
    Row(name="shardflow, no kernel", peer="shardflow", variant="fallback", package="shardflow"),
    Row(name="shardflow", peer="shardflow", variant="kernel", package="shardflow"),
    Row(name="shardflow, uint8", peer="shardflow", variant="kernel", package="shardflow", keep_uint8=True),
)
