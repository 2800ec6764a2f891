"""Log in MLflow or Weights & Biases which data a run was trained on, and resume it with the same data.

    python examples/log_run.py photos256 --tracker mlflow --checkpoint run.pt
    python examples/log_run.py photos256 --tracker wandb --checkpoint run.pt

After an interruption, the same command continues from the checkpoint, as the same run of the tracker. MLflow writes to
MLFLOW_TRACKING_URI: a server, or `sqlite:///mlflow.db`, which needs none. W&B writes below `wandb/`, unless --online is
given: `wandb sync` sends the runs later, `wandb leet` shows them.

- `loader.describe()` is plain JSON: log it as an artifact, or as part of the run's config.
- The loader's state names the version of the dataset that the run began with. `version=` opens that version, even if
  the dataset was extended since. If the dataset was packed again, it raises an error.
- One rank logs for all of them, because they share order and data.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it

import shardflow
from net import Net


class MLflow:
    """A run in MLflow; `run_id` is that of the run to resume."""

    def __init__(self, record: dict, run_id: str | None, arguments: argparse.Namespace) -> None:
        import mlflow

        del arguments
        self._mlflow = mlflow
        self.run_id = mlflow.start_run(run_id=run_id).info.run_id
        if run_id is None:
            mlflow.log_dict(record, "data.json")
            values = {name: value for name, value in record.items() if not isinstance(value, dict | list)}
            mlflow.log_params({f"data.{name}": value for name, value in values.items()})

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Log numbers of a step."""
        self._mlflow.log_metrics(metrics, step=step)

    def end(self) -> None:
        """End the run."""
        self._mlflow.end_run()


class WandB:
    """A run in Weights & Biases; `run_id` is that of the run to resume."""

    def __init__(self, record: dict, run_id: str | None, arguments: argparse.Namespace) -> None:
        import wandb

        mode = "online" if arguments.online else "offline"
        self._run = wandb.init(project="shardflow", mode=mode, id=run_id, resume="allow", config={"data": record})
        self.run_id = self._run.id

    def log(self, metrics: dict[str, float], step: int) -> None:
        """Log numbers of a step."""
        self._run.log(metrics, step=step)

    def end(self) -> None:
        """End the run."""
        self._run.finish()


TRACKERS = {"mlflow": MLflow, "wandb": WandB}


def main() -> None:
    """Parse the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", help="path or URL of a labelled dataset")
    parser.add_argument("--tracker", choices=TRACKERS, required=True)
    parser.add_argument("--online", action="store_true", help="send it to W&B at once")
    parser.add_argument("--checkpoint", type=Path, default=Path("run.pt"), help="loaded if there, and saved")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--size", type=int, default=64, help="height and width of the crops in pixels")
    parser.add_argument("--workers", type=int, default=None, help="worker processes")
    parser.add_argument("--stop-after", type=int, metavar="STEPS", help="end early, as an interruption would")
    arguments = parser.parse_args()
    saved = torch.load(arguments.checkpoint) if arguments.checkpoint.exists() else None
    loader = shardflow.Loader(
        arguments.dataset,
        version=saved["loader"]["fingerprint"] if saved else None,
        batch_size=arguments.batch_size,
        decoder=shardflow.decoders.RandomResizedCrop(arguments.size),
        num_workers=arguments.workers,
    )
    tracker = TRACKERS[arguments.tracker](loader.describe(), saved["run"] if saved else None, arguments)
    train(loader, arguments, tracker, saved)
    tracker.end()


def train(loader: shardflow.Loader, arguments: argparse.Namespace, tracker: MLflow | WandB, saved: dict | None) -> None:
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
            tracker.log({"loss": loss.item()}, step)
            if step == arguments.stop_after:
                break
        stats = loader.stats()
        fed = {
            "data.images_per_s": arguments.batch_size * (stats.batches - 1) / stats.total_s if stats.total_s else 0.0,
            "data.waiting_share": stats.waiting_share,
            "data.first_batch_s": stats.first_s,
        }
        tracker.log(fed, step)
        checkpoint = {"run": tracker.run_id, "step": step, "loader": loader.state_dict()}
        checkpoint.update(model=model.state_dict(), optimiser=optimiser.state_dict())
        unfinished = arguments.checkpoint.with_name(f"{arguments.checkpoint.name}.unfinished")
        torch.save(checkpoint, unfinished)
        unfinished.replace(arguments.checkpoint)  # an interruption leaves the last checkpoint whole
        print(f"epoch {epoch}: {samples} samples; {stats}")
        if step == arguments.stop_after:
            return


if __name__ == "__main__":
    main()
