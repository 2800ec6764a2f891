"""Train on several ranks with DistributedDataParallel, and resume at the next batch after an interruption.

    torchrun --nproc-per-node 4 examples/train_ddp.py photos256 --checkpoint run.pt
    torchrun --nproc-per-node 2 examples/train_ddp.py photos256 --checkpoint run.pt --batch-size 64

The second command continues from the checkpoint of the first, on other ranks and with another batch size: each sample
of the epoch's rest comes once.

- The loader takes rank and world size from torch.distributed, so create the process group before it.
- The state of the loader is a few numbers, equal on all ranks: one rank saves it, with the weights.
- All ranks have equally many batches, so DDP needs no `join`.
- On SIGTERM and SIGUSR1, which schedulers send before they end a job, all ranks save after the same step and end with
  exit code 85, on which slurm.sh and kubernetes.yaml start the job again.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch.distributed.elastic.multiprocessing.errors import record
from torch.nn.parallel import DistributedDataParallel

import shardflow
from net import Net

START_AGAIN = 85
"""The exit code of a run that was told to end before it was done."""


@record  # torchrun's summary then has the error of the rank that failed first
def main() -> None:
    """Parse the command line, and train as one rank of a group."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset")
    parser.add_argument("--split", default="train")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes per rank")
    parser.add_argument("--checkpoint", type=Path, help="loaded if it is there, and saved during training")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="end early, as an interruption would")
    arguments = parser.parse_args()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    try:
        done = train(arguments, torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu"))
    finally:
        dist.destroy_process_group()
    if not done:
        sys.exit(START_AGAIN)


def train(arguments: argparse.Namespace, device: torch.device) -> bool:
    """Train from the checkpoint, or from scratch, to the last epoch; return False if a signal ended that."""
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, lambda number, _: signals.append(number))
    loader = shardflow.Loader(
        arguments.dataset,
        split=arguments.split,
        batch_size=arguments.batch_size,
        decoder=shardflow.decoders.RandomResizedCrop(arguments.size),
        num_workers=arguments.workers,
    )
    classes = shardflow.open(arguments.dataset).classes or ()
    model = DistributedDataParallel(Net(len(classes)).to(device))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    if arguments.checkpoint and arguments.checkpoint.exists():
        saved = torch.load(arguments.checkpoint, map_location=device)
        model.module.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        loader.load_state_dict(saved["loader"])
    step = 0
    for epoch in range(loader.epoch, arguments.epochs):
        loader.set_epoch(epoch)
        samples_and_loss = torch.zeros(2, dtype=torch.float64, device=device)
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(device)), labels.to(device))
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            samples_and_loss += torch.stack([torch.tensor(len(labels), device=device), len(labels) * loss.detach()])
            step += 1
            signalled = on_any_rank(bool(signals), device)
            if signalled or step % arguments.save_every == 0 or step == arguments.stop_after:
                save(arguments.checkpoint, model, optimiser, loader)
            if signalled:
                dist.barrier()  # a launcher may end all ranks when the first one has ended
                return False
            if step == arguments.stop_after:
                break
        report(epoch, samples_and_loss)
        if step == arguments.stop_after:
            return True
    save(arguments.checkpoint, model, optimiser, loader)
    return True


def on_any_rank(condition: bool, device: torch.device) -> bool:
    """Return whether a condition holds on any rank: a signal comes to one of them before the others."""
    holds = torch.tensor(condition, dtype=torch.int32, device=device)
    dist.all_reduce(holds)
    return bool(holds)


def save(
    checkpoint: Path | None,
    model: DistributedDataParallel,
    optimiser: torch.optim.Optimizer,
    loader: shardflow.Loader,
) -> None:
    """Save everything from one rank, under another name first: an interruption leaves the last checkpoint whole."""
    if checkpoint is None or dist.get_rank():
        return
    state = {"model": model.module.state_dict(), "optimiser": optimiser.state_dict(), "loader": loader.state_dict()}
    unfinished = checkpoint.with_name(f"{checkpoint.name}.unfinished")
    torch.save(state, unfinished)
    unfinished.replace(checkpoint)


def report(epoch: int, samples_and_loss: torch.Tensor) -> None:
    """Print how many samples all ranks trained on, and their mean loss."""
    dist.all_reduce(samples_and_loss)
    samples, loss = samples_and_loss.tolist()
    if samples and dist.get_rank() == 0:
        print(f"epoch {epoch}: {samples:.0f} samples, loss {loss / samples:.3f}")


if __name__ == "__main__":
    main()
