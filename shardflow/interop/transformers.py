"""Hugging Face: a `Trainer` whose datasets are loaders, with their states in its checkpoints."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterator
from typing import Any

import transformers
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_callback import ExportableState

from shardflow._wording import plural
from shardflow.errors import ConfigError, ResumeMismatchError
from shardflow.loading.loader import Loader
from shardflow.loading.mix import Mix

logger = logging.getLogger(__name__)


class Trainer(transformers.Trainer):  # type: ignore[misc]  # transformers is optional
    """transformers' `Trainer`, with a `Loader` or `Mix` as `train_dataset`, `eval_dataset` or both.

    The loaders' batch sizes apply; give `TrainingArguments` the same, which are logged. A loader's `batch_transform`
    turns a batch into the model's arguments, usually a dict. Training that resumes from a checkpoint continues with the
    next batch; earlier batches are not read again.

    >>> trainer = Trainer(model, arguments, train_dataset=loader, eval_dataset=val_loader)
    >>> trainer.train(resume_from_checkpoint=True)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(LoaderState())
        if isinstance(loader := self.train_dataset, Loader | Mix):
            if kwargs.get("data_collator") is not None:
                logger.warning("data_collator is not called for the batches of a loader; use its batch_transform")
            if (size := self.args.per_device_train_batch_size) != loader.batch_size:
                message = (
                    "the loader's batch size, %d, applies, not per_device_train_batch_size, which is %d and logged"
                )
                logger.warning(message, loader.batch_size, size)

    def get_train_dataloader(self) -> Any:
        """Return the training loader as a DataLoader, of which `Trainer` skips the first batches when it resumes."""
        loader = self.train_dataset
        return _TrainLoader(loader) if isinstance(loader, Loader | Mix) else super().get_train_dataloader()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the loader for evaluation: by default the trainer's; otherwise the given one, or that of a name."""
        own: Any = self.eval_dataset
        loader = own if eval_dataset is None else own[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        return _checked(loader) if isinstance(loader, Loader | Mix) else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader for prediction."""
        is_own = isinstance(test_dataset, Loader | Mix)
        return _checked(test_dataset) if is_own else super().get_test_dataloader(test_dataset)


def _checked(loader: Loader | Mix) -> Loader | Mix:
    """Return a loader for evaluation; ConfigError if ranks get batches of different sizes, which cannot be gathered."""
    partition = loader.source.partition if isinstance(loader, Loader) else None
    if partition is not None and partition.tail == "short" and partition.length % partition.world_size:
        raise ConfigError(
            f"Trainer gathers batches of one size, but {partition.length} samples do not divide among "
            f"{partition.world_size} ranks; use tail='pad', and set the labels of repeats to -100 in batch_transform: "
            "labels.where(valid, -100)"
        )
    return loader


class LoaderState(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps the training loader's state in the `trainer_state.json` of each checkpoint."""

    def __init__(self) -> None:
        self.loader: Loader | Mix | None = None

    def state(self) -> dict[str, Any]:
        """Return the entries for a checkpoint, without a loader's state before training begins."""
        return {"args": {}, "attributes": {} if self.loader is None else {"saved": self.loader.state_dict()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        """Load the loader's state if training resumes.

        Raises:
            ResumeMismatchError: The checkpoint has no state of a loader, or the state is of another dataset or order,
                or of another number of batches than `Trainer` counts.
        """
        loaded = others["train_dataloader"]
        if not isinstance(loaded, _TrainLoader):
            return
        self.loader = loader = loaded.loader
        saved = state.stateful_callbacks.setdefault(type(self).__name__, {}).get("attributes", {}).get("saved")
        if not state.global_step or args.ignore_data_skip:
            return
        if saved is None:
            raise ResumeMismatchError(
                "the checkpoint has no state of a loader, because another Trainer made it; to continue at the start of "
                "an epoch, set ignore_data_skip=True in TrainingArguments"
            )
        loader.load_state_dict(saved)
        epoch, steps = divmod(state.global_step, -(-len(loader) // args.gradient_accumulation_steps))
        loaded.dataset.seen = seen = steps * args.gradient_accumulation_steps  # type: ignore[attr-defined]
        counted, found = epoch * len(loader) + seen, (loader.epoch + 1) * len(loader) - loader.remaining
        if counted != found:
            raise ResumeMismatchError(
                f"Trainer counts {plural(counted, 'batch')} until step {state.global_step}, the loader's state "
                f"{found}; resume with the batch size, ranks and gradient_accumulation_steps of the checkpoint"
            )


class _TrainLoader(DataLoader[Any]):
    """A torch DataLoader of a loader's batches. To skip batches, accelerate makes another one of its dataset."""

    def __init__(self, loader: Loader | Mix) -> None:
        super().__init__(_Batches(loader), batch_size=None)
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch; `Trainer` calls this when it does not skip batches."""
        self.loader.set_epoch(epoch)


class _Batches(IterableDataset[Any]):
    """A loader's batches. After a resume, a None precedes them for each earlier batch, which `Trainer` skips."""

    def __init__(self, loader: Loader | Mix) -> None:
        self.loader, self.seen = loader, 0

    def __len__(self) -> int:
        """Return the number of samples, from which `Trainer` computes its throughput."""
        loader = self.loader
        return len(loader.dataset) if isinstance(loader, Loader) else len(loader) * loader.batch_size

    def __iter__(self) -> Iterator[Any]:
        seen, self.seen = self.seen, 0
        return itertools.chain(itertools.repeat(None, seen), self.loader)
