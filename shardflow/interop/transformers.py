"""Hugging Face: a `Trainer` whose datasets are loaders, and that resumes them where its checkpoint was made."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import transformers
from torch.utils.data import DataLoader, IterableDataset
from transformers.trainer_callback import ExportableState

from shardflow.errors import ConfigError, ResumeMismatchError
from shardflow.loading.loader import Loader
from shardflow.loading.mix import Mix


class Trainer(transformers.Trainer):  # type: ignore[misc] # its thousands of modules are not looked into
    """transformers' `Trainer`, with a `Loader` or `Mix` as `train_dataset`, `eval_dataset` or both.

    The loaders have their own batch sizes; give `TrainingArguments` the same ones, which it logs. Their
    `batch_transform` turns a batch into the model's arguments, usually a dict. A training that resumes from a
    checkpoint continues with the batch after it, and reads nothing twice.

    >>> trainer = Trainer(model, arguments, train_dataset=loader, eval_dataset=val_loader)
    >>> trainer.train(resume_from_checkpoint=True)
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.add_callback(LoaderState())

    def get_train_dataloader(self) -> Any:
        """Return the training loader, in the form whose first batches `Trainer` skips when it resumes."""
        loader = self.train_dataset
        return _TrainLoader(loader) if isinstance(loader, Loader | Mix) else super().get_train_dataloader()

    def get_eval_dataloader(self, eval_dataset: Any = None) -> Any:
        """Return the evaluation loader: the given one, the one of this name, or the trainer's."""
        own: Any = self.eval_dataset
        loader = own if eval_dataset is None else own[eval_dataset] if isinstance(eval_dataset, str) else eval_dataset
        return _checked(loader) if isinstance(loader, Loader | Mix) else super().get_eval_dataloader(eval_dataset)

    def get_test_dataloader(self, test_dataset: Any) -> Any:
        """Return the loader to predict on."""
        is_own = isinstance(test_dataset, Loader | Mix)
        return _checked(test_dataset) if is_own else super().get_test_dataloader(test_dataset)


def _checked(loader: Loader | Mix) -> Loader | Mix:
    """Return a loader to evaluate on; ConfigError if its ranks get batches of several sizes, which would not gather."""
    partition = loader.source.partition if isinstance(loader, Loader) else None
    if partition is not None and partition.tail == "short" and partition.length % partition.world_size:
        raise ConfigError(
            f"Trainer gathers batches of one size, and {partition.length} samples do not divide among "
            f"{partition.world_size} ranks: evaluate with tail='pad', and in batch_transform set the labels of the "
            "repeats to -100, labels.where(valid, -100), so that they do not count"
        )
    return loader


class LoaderState(transformers.TrainerCallback, ExportableState):  # type: ignore[misc]
    """Keeps the training loader's state in the `trainer_state.json` of each checkpoint."""

    def __init__(self) -> None:
        self.loader: Loader | Mix | None = None

    def state(self) -> dict[str, Any]:
        """Return the entries for a checkpoint; nothing before training begins."""
        return {"args": {}, "attributes": {} if self.loader is None else {"saved": self.loader.state_dict()}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **others: Any) -> None:  # noqa: ARG002
        """Go to the place where the checkpoint was made, if training resumes.

        Raises:
            ResumeMismatchError: The checkpoint has no state of a loader, or one of another dataset or order, or of
                another place than `Trainer` counts.
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
                "the checkpoint has no state of a loader, for another Trainer made it; with ignore_data_skip=True in "
                "TrainingArguments, training continues at the start of an epoch"
            )
        loader.load_state_dict(saved)
        epoch, steps = divmod(state.global_step, -(-len(loader) // args.gradient_accumulation_steps))
        loaded.dataset.seen = seen = steps * args.gradient_accumulation_steps  # type: ignore[attr-defined]
        counted, found = epoch * len(loader) + seen, (loader.epoch + 1) * len(loader) - loader.remaining
        if counted != found:
            raise ResumeMismatchError(
                f"Trainer counts {counted} batches until step {state.global_step}, the loader's state {found}: resume "
                "with the batch size, ranks and gradient_accumulation_steps of the checkpoint"
            )


class _TrainLoader(DataLoader[Any]):
    """A torch DataLoader that hands out a loader's batches; to skip, accelerate makes another of its dataset."""

    def __init__(self, loader: Loader | Mix) -> None:
        super().__init__(_Batches(loader), batch_size=None)
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def set_epoch(self, epoch: int) -> None:
        """Go to an epoch, which `Trainer` asks for where it does not skip."""
        self.loader.set_epoch(epoch)


class _Batches(IterableDataset[Any]):
    """A loader's batches, after a None for each of those that were seen before a resume, which `Trainer` skips."""

    def __init__(self, loader: Loader | Mix) -> None:
        self.loader, self.seen = loader, 0

    def __len__(self) -> int:
        """Return the number of samples, from which `Trainer` computes the speed that it logs."""
        loader = self.loader
        return len(loader.dataset) if isinstance(loader, Loader) else len(loader) * loader.batch_size

    def __iter__(self) -> Iterator[Any]:
        seen, self.seen = self.seen, 0
        return itertools.chain(itertools.repeat(None, seen), self.loader)
