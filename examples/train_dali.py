"""Train on the same shards through an NVIDIA DALI pipeline, on a GPU or on the CPU.

    pip install nvidia-dali-cuda130
    shardflow export dali photos256
    python examples/train_dali.py photos256

DALI's reader takes WebDataset tars; with the exported index files it need not scan every tar before the first batch.

- Order, epochs and resuming are DALI's, not the loader's: a shuffle buffer of `initial_fill` samples, and a reader that
  must be told where the last batch of an epoch ends.
- Labels arrive as the text in `.cls`, padded to one length.
- Under torchrun, each rank reads its share of the samples (`shard_id`, `num_shards`).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from nvidia.dali import fn, pipeline_def, types
from nvidia.dali.plugin.base_iterator import LastBatchPolicy
from nvidia.dali.plugin.pytorch import DALIGenericIterator

import shardflow
from net import Net
from shardflow.device.transforms.normalize import IMAGENET_MEAN, IMAGENET_STD

DIGITS = 12


@pipeline_def(seed=0)
def pipeline(tars: list[str], indexes: list[str], size: int, gpu: bool) -> Any:
    """Read, decode what the crop needs, resize, flip and normalise."""
    files, classes = fn.readers.webdataset(
        paths=tars,
        index_paths=indexes,
        ext=["jpg", "cls"],
        missing_component_behavior="error",
        random_shuffle=True,
        initial_fill=2048,
        shard_id=int(os.environ.get("RANK", "0")),
        num_shards=int(os.environ.get("WORLD_SIZE", "1")),
        stick_to_shard=True,
        pad_last_batch=True,
        name="reader",
    )
    images = fn.decoders.image_random_crop(files, device="mixed" if gpu else "cpu", output_type=types.RGB)
    images = fn.resize(images, size=(size, size), antialias=True)
    images = fn.crop_mirror_normalize(
        images,
        dtype=types.FLOAT,
        output_layout="CHW",
        mirror=fn.random.coin_flip(),
        mean=[255 * value for value in IMAGENET_MEAN],
        std=[255 * value for value in IMAGENET_STD],
    )
    return images, fn.pad(classes, axes=[0], shape=[DIGITS], fill_value=ord(" "))


def batches_of(folder: Path, indexes: Path, size: int, batch_size: int, threads: int, gpu: bool, **ends: Any) -> Any:
    """Return an iterator over the training split of a dataset; `ends` say how an epoch ends."""
    train = shardflow.open(folder)["train"]
    made = pipeline(
        [train.reader.url(number) for number in range(len(train.shards))],  # those of a subset or split lie elsewhere
        [str(indexes / Path(shard.name).with_suffix(".idx")) for shard in train.shards],
        size,
        gpu,
        batch_size=batch_size,
        num_threads=threads,
        device_id=0 if gpu else None,
    )
    return DALIGenericIterator(made, ["images", "labels"], reader_name="reader", **ends)


def main() -> None:
    """Parse the command line, and train for an epoch."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path, help="a labelled dataset in a local directory")
    parser.add_argument("--indexes", type=Path, help="folder of the index files, if not next to the shards")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per step")
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--threads", type=int, default=2, help="DALI's threads")
    given = parser.parse_args()
    gpu = torch.cuda.is_available()
    device = torch.device("cuda") if gpu else torch.device("cpu")
    batches = batches_of(
        given.dataset,
        given.indexes or given.dataset,
        given.size,
        given.batch_size,
        given.threads,
        gpu,
        last_batch_policy=LastBatchPolicy.PARTIAL,
    )
    torch.manual_seed(0)
    net = Net(len(shardflow.open(given.dataset).classes or ())).to(device)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    samples, total = 0, torch.zeros((), device=device)
    for (batch,) in batches:
        labels = torch.tensor([int(bytes(text)) for text in batch["labels"].cpu().numpy()], device=device)
        loss = F.cross_entropy(net(batch["images"].to(device)), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        samples += len(labels)
        total += len(labels) * loss.detach()
    print(f"{samples} samples, loss {float(total) / samples:.3f}")


if __name__ == "__main__":
    main()
