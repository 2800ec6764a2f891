"""Evaluate on several ranks, with exactly the result of one process.

    torchrun --nproc-per-node 4 examples/evaluate_sharded.py photos256 --weights run.pt

Most loaders give all ranks the same number of samples by repeating some, which changes the accuracy. With
`shuffle=False, tail="short"` each sample is evaluated once, for any number of samples: the last batches are shorter,
and may be empty on some ranks, but all ranks have equally many. An empty batch keeps its shape, so the loop needs no
special case. The ranks add up counts, not means. `--weights` takes a checkpoint of train_ddp.py.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist

import shardflow
from net import Net


def main() -> None:
    """Parse the command line, evaluate as one rank of a group, and print top-1 over all ranks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset")
    parser.add_argument("--split", default="val")
    parser.add_argument("--weights", type=Path, help="a checkpoint of train_ddp.py; without it the net is untrained")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes per rank")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
        right, samples = evaluate(arguments, device)
        if dist.get_rank() == 0:
            print(f"top-1: {right} of {samples} samples, {right / samples:.2%}")
    finally:
        dist.destroy_process_group()


@torch.inference_mode()
def evaluate(arguments: argparse.Namespace, device: torch.device) -> tuple[int, int]:
    """Return how many samples of the split the net gets right, and how many there are, over all ranks."""
    loader = shardflow.Loader(
        arguments.dataset,
        split=arguments.split,
        batch_size=arguments.batch_size,
        decoder=shardflow.decoders.CenterCrop(arguments.size),
        shuffle=False,
        tail="short",
        num_workers=arguments.workers,
    )
    torch.manual_seed(0)
    net = Net(len(shardflow.open(arguments.dataset).classes or ())).to(device).eval()
    if arguments.weights:
        net.load_state_dict(torch.load(arguments.weights, map_location=device)["model"])
    counts = torch.zeros(2, dtype=torch.int64, device=device)
    for images, labels in loader:
        right = net(images.to(device)).argmax(1) == labels.to(device)
        counts += torch.stack([right.sum(), torch.tensor(len(labels), device=device)])
    dist.all_reduce(counts)
    return int(counts[0]), int(counts[1])


if __name__ == "__main__":
    main()
