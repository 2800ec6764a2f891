"""Train with Hugging Face Accelerate, and resume at the next batch after an interruption.

    torchrun --nproc-per-node 4 examples/train_accelerate.py photos256 --folder run
    torchrun --nproc-per-node 2 examples/train_accelerate.py photos256 --folder run --batch-size 64

The second command continues from the last state of the first, on other ranks. `accelerate launch` works like torchrun.

- `Accelerator()` comes first: it makes the process group from which the loader takes rank and world size. Without a GPU
  it needs `cpu=True`; otherwise each process trains a separate model.
- Do not prepare the loader: each rank has its share of the samples already. A prepared DataLoader also moves batches to
  the device, which this loop does.
- `register_for_checkpointing(loader)` puts the loader's state into `save_state` and `load_state`.
  `skip_first_batches` is not needed.
- Accelerate does not see the end of an epoch of a loader that it did not wrap. With `accelerator.accumulate`, the last
  batches of an epoch accumulate with the first of the next. Instead of `gather_for_metrics`, evaluate with tail="short"
  and add up counts.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from accelerate import Accelerator

import shardflow
from net import Net


def main() -> None:
    """Parse the command line and train, as one rank or the only one."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset with the splits train and val")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="end early, as an interruption would")
    parser.add_argument("--batch-size", type=int, default=32, help="samples per rank and step")
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes per rank")
    parser.add_argument("--folder", type=Path, default=Path("run"), help="where the state goes")
    parser.add_argument("--save-every", type=int, default=100, metavar="STEPS")
    arguments = parser.parse_args()
    accelerator = Accelerator(cpu=not torch.cuda.is_available())
    train(arguments, accelerator)
    accelerator.end_training()


def train(arguments: argparse.Namespace, accelerator: Accelerator) -> None:
    """Train from the saved state, or from scratch, to the last epoch."""
    options = {"batch_size": arguments.batch_size, "num_workers": arguments.workers}
    loader = shardflow.Loader(
        arguments.dataset, split="train", decoder=shardflow.decoders.RandomResizedCrop(arguments.size), **options
    )
    val_loader = shardflow.Loader(
        arguments.dataset,
        split="val",
        decoder=shardflow.decoders.CenterCrop(arguments.size),
        shuffle=False,
        tail="short",
        **options,
    )
    net = Net(len(shardflow.open(arguments.dataset).classes or ()))
    model, optimiser = accelerator.prepare(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
    accelerator.register_for_checkpointing(loader)
    if arguments.folder.exists():
        accelerator.load_state(arguments.folder)
    step = 0
    for epoch in range(loader.epoch, arguments.epochs):
        loader.set_epoch(epoch)
        samples = torch.zeros((), dtype=torch.int64, device=accelerator.device)
        for images, labels in loader:
            loss = F.cross_entropy(model(images.to(accelerator.device)), labels.to(accelerator.device))
            accelerator.backward(loss)
            optimiser.step()
            optimiser.zero_grad()
            samples += len(labels)
            step += 1
            if step % arguments.save_every == 0 or step == arguments.stop_after:
                accelerator.save_state(arguments.folder)
            if step == arguments.stop_after:
                break
        accelerator.print(f"epoch {epoch}: {int(accelerator.reduce(samples, 'sum'))} samples")
        if step == arguments.stop_after:
            return
        right, evaluated = evaluate(model, val_loader, accelerator)
        accelerator.print(f"epoch {epoch}: top-1 {right} of {evaluated} samples")
    accelerator.save_state(arguments.folder)


@torch.inference_mode()
def evaluate(model: torch.nn.Module, loader: shardflow.Loader, accelerator: Accelerator) -> tuple[int, int]:
    """Return how many samples the model gets right, and how many there are, over all ranks."""
    model.eval()
    counts = torch.zeros(2, dtype=torch.int64, device=accelerator.device)
    for images, labels in loader:
        right = model(images.to(accelerator.device)).argmax(1) == labels.to(accelerator.device)
        counts += torch.stack([right.sum(), torch.tensor(len(labels), device=accelerator.device)])
    model.train()
    right, evaluated = accelerator.reduce(counts, "sum").tolist()
    return right, evaluated


if __name__ == "__main__":
    main()
