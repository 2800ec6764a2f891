"""Train an image classifier with a full recipe: bf16, channels_last, MixUp and CutMix, EMA, on one GPU or many.

    torchrun --nproc-per-node 8 examples/train_imagenet.py imagenet256 --checkpoint run.pt --compile --ema 0.9999
    python examples/train_imagenet.py photos256 --model resnet18 --size 64 --batch-size 16 --epochs 1   # on a CPU

The recipe is torchvision's for ResNet-50 (https://pytorch.org/blog/how-to-train-state-of-the-art-models-using-
torchvision-latest-primitives/) without TrivialAugment. After an interruption, the same command continues at the next
batch, on any number of ranks.

- Workers return uint8. Erasing, normalising, MixUp and CutMix run on the device, keyed by sample. With
  `--decode device` the workers return the files, and the GPU decodes them.
- The learning rate is a function of the samples trained so far, so the loader's state is also the schedule's.
- `batches.stats()` says how long training waited for data, and what to do about it.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
import torchvision
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

import shardflow

WARM_UP_EPOCHS = 5
WEIGHT_DECAY = 2e-5


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset with the splits train and val")
    parser.add_argument("--model", default="resnet50", help="any classifier of torchvision.models, by name")
    parser.add_argument("--epochs", type=int, default=90)
    parser.add_argument("--batch-size", type=int, default=256, help="samples per rank and step")
    parser.add_argument("--size", type=int, default=176, help="height and width of the training crops in pixels")
    parser.add_argument("--eval-size", type=int, default=224, help="height and width of the evaluation crops in pixels")
    parser.add_argument("--lr", type=float, default=0.5, help="learning rate for 1,024 samples per step")
    parser.add_argument("--mixup", type=float, default=0.2, metavar="ALPHA")
    parser.add_argument("--cutmix", type=float, default=1.0, metavar="ALPHA")
    parser.add_argument("--erase", type=float, default=0.1, metavar="P", help="probability of random erasing")
    parser.add_argument("--smoothing", type=float, default=0.1, help="of the labels")
    parser.add_argument("--ema", type=float, metavar="DECAY", help="evaluate a moving average of the weights")
    parser.add_argument("--compile", action="store_true", help="torch.compile the model")
    parser.add_argument("--decode", choices=("workers", "device"), default="workers", help="where JPEGs are decoded")
    parser.add_argument("--workers", type=int, default=None, help="worker processes per rank")
    parser.add_argument("--checkpoint", type=Path, help="loaded if it is there, and saved during training")
    parser.add_argument("--save-every", type=int, default=1000, metavar="STEPS")
    parser.add_argument("--print-every", type=int, default=50, metavar="STEPS")
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="end early, as an interruption would")
    return parser.parse_args()


def main() -> None:
    """Train, as one rank of a group or alone."""
    given = arguments()
    with process_group() as device:
        if device.type == "cuda":
            torch.cuda.set_device(device)
            torch.backends.cudnn.benchmark = True
            torch.set_float32_matmul_precision("high")
        Training(given, device).run()


@contextlib.contextmanager
def process_group() -> Iterator[torch.device]:
    """Join the ranks that torchrun started, if it did, and give this rank's device."""
    on_gpu = torch.cuda.is_available()
    device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0"))) if on_gpu else torch.device("cpu")
    if "RANK" not in os.environ:
        yield device
        return
    dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield device
    finally:
        dist.destroy_process_group()


class Training:
    """A model, its data, and its progress."""

    def __init__(self, given: argparse.Namespace, device: torch.device) -> None:
        self.given, self.device = given, device
        dataset = shardflow.open(given.dataset)
        self.classes = len(dataset.classes or ())
        self.ranks = dist.get_world_size() if dist.is_initialized() else 1
        self.leading = not dist.is_initialized() or dist.get_rank() == 0
        self.samples = len(dataset["train"])
        self.batches = train_batches(given, device, self.classes)
        self.val = val_batches(given, device)
        torch.manual_seed(0)
        model = torchvision.models.get_model(given.model, num_classes=self.classes)
        self.net = model.to(device, memory_format=torch.channels_last)
        decay = get_ema_multi_avg_fn(given.ema) if given.ema else None
        self.average = AveragedModel(self.net, multi_avg_fn=decay, use_buffers=True) if given.ema else None
        self.optimiser = torch.optim.SGD(groups(self.net), lr=given.lr, momentum=0.9, nesterov=True)
        self.load()
        parallel = DistributedDataParallel(self.net) if dist.is_initialized() else self.net
        self.model = torch.compile(parallel) if given.compile else parallel

    def run(self) -> None:
        """Train from the current position to the last epoch."""
        given, step = self.given, 0
        for epoch in range(self.batches.epoch, given.epochs):
            self.batches.set_epoch(epoch)
            self.model.train()
            started, images_seen = time.perf_counter(), 0
            for images, targets in self.batches:
                loss = self.step(images, targets)
                step += 1
                images_seen += len(images) * self.ranks
                if step % given.print_every == 0:
                    rate = images_seen / (time.perf_counter() - started)
                    self.say(
                        f"epoch {epoch} step {step}: loss {loss.item():.3f}, {rate:.0f} images/s, "
                        f"{self.batches.stats().waiting_share:.1%} of the time waiting for data"
                    )
                if step % given.save_every == 0 or step == given.stop_after:
                    self.save()
                if step == given.stop_after:
                    return
            self.say(f"epoch {epoch}: {images_seen} images; {self.batches.stats()}")
            right, evaluated = self.evaluate()
            self.say(f"epoch {epoch}: top-1 {right / max(evaluated, 1):.2%} of {evaluated} images")
        self.save()

    def step(self, images: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Take one step of the optimiser, and return the loss, on the device."""
        rate = self.rate()
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        with torch.autocast(self.device.type, dtype=torch.bfloat16):
            loss = F.cross_entropy(self.model(images), targets, label_smoothing=self.given.smoothing)
        self.optimiser.zero_grad()
        loss.backward()
        self.optimiser.step()
        if self.average is not None:
            self.average.update_parameters(self.net)
        return loss.detach()

    def rate(self) -> float:
        """Return the learning rate: a linear warm-up, then half a cosine, scaled with the size of a step."""
        state = self.batches.state_dict()
        done = state["epoch"] + state["position"] / self.samples
        warm_up = min(WARM_UP_EPOCHS, self.given.epochs / 2)
        share = (done - warm_up) / (self.given.epochs - warm_up)
        shape = done / warm_up if done < warm_up else 0.5 * (1 + math.cos(math.pi * min(share, 1.0)))
        return float(self.given.lr * self.given.batch_size * self.ranks / 1024 * shape)

    @torch.inference_mode()
    def evaluate(self) -> tuple[int, int]:
        """Return how many samples of the split val are classified rightly, and how many there are, over all ranks."""
        model = (self.average.module if self.average is not None else self.net).eval()
        for buffer in model.buffers() if dist.is_initialized() else ():
            dist.broadcast(buffer, 0)  # each rank has its own statistics of batches
        counts = torch.zeros(2, dtype=torch.int64, device=self.device)
        for images, labels in self.val:
            with torch.autocast(self.device.type, dtype=torch.bfloat16):
                right = model(images).argmax(1) == labels if len(images) else labels.bool()
            counts += torch.stack([right.sum(), torch.tensor(len(labels), device=self.device)])
        if dist.is_initialized():
            dist.all_reduce(counts)
        return int(counts[0]), int(counts[1])

    def save(self) -> None:
        """Save everything from one rank, under another name first: an interruption leaves the last checkpoint whole."""
        if self.given.checkpoint is None or not self.leading:
            return
        state = {"loader": self.batches.state_dict()}
        state |= {name: part.state_dict() for name, part in self.parts().items()}
        unfinished = self.given.checkpoint.with_name(f"{self.given.checkpoint.name}.unfinished")
        torch.save(state, unfinished)
        unfinished.replace(self.given.checkpoint)

    def load(self) -> None:
        """Load the checkpoint, if there is one."""
        if self.given.checkpoint is None or not self.given.checkpoint.exists():
            return
        saved = torch.load(self.given.checkpoint, map_location=self.device)
        for name, part in self.parts().items():
            if name in saved or name != "average":  # averaging may begin with this run, at the weights that it finds
                part.load_state_dict(saved[name])
        self.batches.load_state_dict(saved["loader"])

    def parts(self) -> dict[str, Any]:
        """Return the objects with a state, except the loader."""
        parts = {"model": self.net, "optimiser": self.optimiser, "average": self.average}
        return {name: part for name, part in parts.items() if part is not None}

    def say(self, line: str) -> None:
        """Print a line from one rank."""
        if self.leading:
            print(line, flush=True)


def train_batches(given: argparse.Namespace, device: torch.device, classes: int) -> shardflow.device.Prefetcher:
    """Return the training data, augmented on the device."""
    crop = shardflow.decoders.RandomResizedCrop(given.size)
    on_device = given.decode == "device"
    loader = shardflow.Loader(
        given.dataset,
        split="train",
        batch_size=given.batch_size,
        decoder=shardflow.decoders.Raw() if on_device else crop,
        fields=("image", "label", "random_key"),
        num_workers=given.workers,
    )
    transforms = [
        *([shardflow.device.DecodeJpeg(crop)] if on_device else []),
        shardflow.device.Normalize(),
        shardflow.device.RandomErasing(given.erase),
        shardflow.device.OneOf(
            [
                shardflow.device.MixUp(alpha=given.mixup, num_classes=classes),
                shardflow.device.CutMix(alpha=given.cutmix, num_classes=classes),
            ]
        ),
    ]
    return shardflow.device.Prefetcher(loader, device, transforms, channels_last=True)


def val_batches(given: argparse.Namespace, device: torch.device) -> shardflow.device.Prefetcher:
    """Return the evaluation data: every sample once, whatever the number of ranks."""
    loader = shardflow.Loader(
        given.dataset,
        split="val",
        batch_size=given.batch_size,
        decoder=shardflow.decoders.CenterCrop(given.eval_size),
        shuffle=False,
        tail="short",
        num_workers=shardflow.Workers(given.workers, persistent_workers=False),
    )
    return shardflow.device.Prefetcher(loader, device, [shardflow.device.Normalize()], channels_last=True)


def groups(net: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters in two groups: biases and norms are not decayed."""
    flat = [parameter for parameter in net.parameters() if parameter.dim() < 2]
    others = [parameter for parameter in net.parameters() if parameter.dim() >= 2]
    return [{"params": others, "weight_decay": WEIGHT_DECAY}, {"params": flat, "weight_decay": 0.0}]


if __name__ == "__main__":
    main()
