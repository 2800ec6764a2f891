"""Train without labels on several views of each image, as DINO does: a student predicts its slow average's outputs.

    python examples/train_dino.py photos256

After Caron et al., "Emerging properties in self-supervised vision transformers", 2021.

- `MultiView` reads and decodes each image once for all of its views. A batch has a tuple with a tensor per view: two
  large crops, which the teacher sees, and small ones.
- Augmentation on the device treats each view separately, keyed by (seed, epoch, sample, view).
- Large crops go through the net together, and so do small ones, as tensors of one size.
"""

from __future__ import annotations

import argparse
import copy
import itertools

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

import shardflow
from net import Net

GLOBAL_VIEWS = 2
STUDENT_TEMPERATURE, TEACHER_TEMPERATURE = 0.1, 0.04


def main() -> None:
    """Parse the command line, and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a dataset; labels are not used")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=64, help="samples per step")
    parser.add_argument("--size", type=int, default=224, help="height and width of the large crops in pixels")
    parser.add_argument("--local-views", type=int, default=8, help="small crops, 3/7 as high and wide")
    parser.add_argument("--outputs", type=int, default=256, help="of the net")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    given = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    large = shardflow.decoders.RandomResizedCrop(given.size, scale=(0.25, 1))
    small = shardflow.decoders.RandomResizedCrop(given.size * 3 // 7, scale=(0.05, 0.25))
    loader = shardflow.Loader(
        given.dataset,
        batch_size=given.batch_size,
        decoder=shardflow.decoders.MultiView([large] * GLOBAL_VIEWS + [small] * given.local_views),
        fields=("image", "random_key"),
        num_workers=given.workers,
    )
    batches = shardflow.device.Prefetcher(
        loader, device, [shardflow.device.ColorJitter(0.4, 0.4, 0.2, 0.1), shardflow.device.Normalize()]
    )
    torch.manual_seed(0)
    student = Net(given.outputs).to(device)
    teacher = copy.deepcopy(student).requires_grad_(False)
    centre = torch.zeros(given.outputs, device=device)
    optimiser = torch.optim.AdamW(student.parameters(), lr=1e-3)
    for epoch in range(given.epochs):
        for (views,) in batches:
            seen = torch.cat(
                [student(torch.cat(each)) for each in (views[:GLOBAL_VIEWS], views[GLOBAL_VIEWS:]) if each]
            )
            with torch.no_grad():
                shown = teacher(torch.cat(views[:GLOBAL_VIEWS]))
            loss = distillation_loss(
                seen.chunk(len(views)), ((shown - centre) / TEACHER_TEMPERATURE).chunk(GLOBAL_VIEWS)
            )
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            with torch.no_grad():
                centre.lerp_(shown.mean(0), 0.1)
                for slow, fast in zip(teacher.parameters(), student.parameters(), strict=True):
                    slow.lerp_(fast, 0.004)
        print(f"epoch {epoch}: {len(batches)} steps, {len(views)} views, loss {float(loss.detach()):.3f}")
    print(batches.stats())


def distillation_loss(student: tuple[torch.Tensor, ...], teacher: tuple[torch.Tensor, ...]) -> torch.Tensor:
    """Return the mean cross-entropy between outputs of teacher and student for different views; logits [B, K]."""
    pairs = [
        F.cross_entropy(seen / STUDENT_TEMPERATURE, shown.softmax(1))
        for (number, shown), (other, seen) in itertools.product(enumerate(teacher), enumerate(student))
        if number != other
    ]
    return torch.stack(pairs).mean()


if __name__ == "__main__":
    main()
