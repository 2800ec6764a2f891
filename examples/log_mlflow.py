"""Note down in MLflow what a run was trained on and how well it was fed, and go on with the very same data.

    python examples/log_mlflow.py photos256 --checkpoint run.pt
    python examples/log_mlflow.py photos256 --checkpoint run.pt

The second command goes on from the checkpoint, in the same MLflow run, should the first have been interrupted. Runs go
to where MLFLOW_TRACKING_URI says: a server, or `sqlite:///mlflow.db`, which needs none. What to look at:

- `loader.describe()` is plain JSON: whole as an artifact, its single values as parameters, to search and compare by.
- The run says which version of the dataset it began with, and `version=` opens that one, though the dataset may have
  been extended since. Where it was packed anew, it is an error instead of other data.
- Of several ranks, one logs: they share order and data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import mlflow
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

import shardflow
from net import Net

RECORD = "data.json"


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset")
    parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"), help="loaded if there, and saved")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="end early, as an interruption would")
    arguments = parser.parse_args()
    saved = torch.load(arguments.checkpoint) if arguments.checkpoint.exists() else None
    with mlflow.start_run(run_id=saved["run"] if saved else None) as run:
        began_with = mlflow.artifacts.load_dict(f"runs:/{run.info.run_id}/{RECORD}") if saved else {}
        loader = shardflow.Loader(
            arguments.dataset,
            version=began_with.get("fingerprint"),
            batch_size=arguments.batch_size,
            decoder=shardflow.decoders.RandomResizedCrop(arguments.size),
            num_workers=arguments.workers,
        )
        if saved is None:
            record = loader.describe()
            mlflow.log_dict(record, RECORD)
            values = {name: value for name, value in record.items() if not isinstance(value, dict | list)}
            mlflow.log_params({f"data.{name}": value for name, value in values.items()})
        train(loader, arguments, run.info.run_id, saved)


def train(loader: shardflow.Loader, arguments: argparse.Namespace, run_id: str, saved: dict | None) -> None:
    """Train to the last epoch, and log as it goes."""
    model = Net(len(loader.dataset.classes))
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    step = 0
    if saved is not None:
        model.load_state_dict(saved["model"])
        optimiser.load_state_dict(saved["optimiser"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    for epoch in range(loader.epoch, arguments.epochs):
        loader.set_epoch(epoch)
        samples = 0
        for images, labels in loader:
            loss = F.cross_entropy(model(images), labels)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step, samples = step + 1, samples + len(labels)
            mlflow.log_metric("loss", loss.item(), step=step)
            if step == arguments.stop_after:
                break
        stats = loader.stats()
        fed = {
            "data.images_per_s": arguments.batch_size * (stats.batches - 1) / stats.total_s if stats.total_s else 0.0,
            "data.waiting_share": stats.waiting_share,
            "data.first_batch_s": stats.first_s,
        }
        mlflow.log_metrics(fed, step=step)
        checkpoint = {"run": run_id, "step": step, "loader": loader.state_dict()}
        checkpoint.update(model=model.state_dict(), optimiser=optimiser.state_dict())
        unfinished = arguments.checkpoint.with_name(f"{arguments.checkpoint.name}.unfinished")
        torch.save(checkpoint, unfinished)
        unfinished.replace(arguments.checkpoint)  # an interruption leaves the last checkpoint whole
        print(f"epoch {epoch}: {samples} samples; {stats}")
        if step == arguments.stop_after:
            return


if __name__ == "__main__":
    main()
