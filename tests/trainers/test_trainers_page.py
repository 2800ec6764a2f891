"""What docs/trainers.md shows, run as it stands there, with diffs applied to other projects' own files."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import webdataset as wds
from torch import nn

import shardflow
from tests.helpers.diffs import diff_below, patched, side
from tests.helpers.pages import PAGES, blocks
from tests.helpers.scripts import run

from .conftest import CLASSES, SPLITS

PAGE = "docs/trainers.md"


@pytest.fixture
def names(packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the page's code takes as given, in a directory with its dataset; the model acts differently when it trains.

    The model tells the classes by their colour, unless its dropout is on.
    """
    shutil.copytree(packed, tmp_path / "photos256")
    monkeypatch.chdir(tmp_path)
    model = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.5), nn.Linear(3, CLASSES))
    model[3].load_state_dict({"weight": torch.eye(3), "bias": torch.tensor([0.02, 0.0, 0.0])})
    return {"shardflow": shardflow, "torch": torch, "model": model}


def test_the_accuracy_is_that_of_a_loop(names: dict[str, Any]) -> None:
    """docs/from-imagefolder.md trains in training mode, and its accuracy is that of a loop over single samples."""
    model, trained = names["model"], []
    names |= {"train_step": lambda *_: trained.append(model.training), "range": lambda *_: range(2)}
    page = PAGES["docs/from-imagefolder.md"].read_text(encoding="utf-8")
    exec(next(block.code for block in blocks(page) if "accuracy" in block.code), names)
    right = 0
    with torch.inference_mode():
        for images, labels in shardflow.Loader("photos256", split="val", batch_size=1, shuffle=False, num_workers=0):
            right += int(model.eval()(images / 255).argmax() == labels)
    assert names["accuracy"] == right / SPLITS["val"] > 0.8
    assert trained == [True, True]


class Named(nn.Module):
    """A model as transformers has them."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """Return loss and logits."""
        logits = self.net(pixel_values)
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


@pytest.mark.filterwarnings("ignore")  # accelerate's, on the number of workers
def test_the_hugging_face_recipe_resumes(names: dict[str, Any]) -> None:
    """The page's recipe trains, evaluates, and goes on from its own checkpoint."""
    (hunk,) = diff_below(PAGE, "Hugging Face Trainer")
    names |= {"normalize": lambda images: images, "model": Named(names["model"]), "__name__": "recipe"}
    names["top1"] = lambda found: {"top1": (found.predictions.argmax(1) == found.label_ids).mean()}
    recipe = side(hunk, "+").replace("save_steps=500", "save_steps=2, use_cpu=True, report_to=[], disable_tqdm=True")
    recipe = re.sub("(batch_transform=named)", r"\1, num_workers=0", recipe)
    exec(recipe, names)
    assert names["trainer"].state.global_step == 3
    assert names["trainer"].evaluate()["eval_top1"] > 0.8
    shutil.rmtree("run/checkpoint-3")
    exec(recipe.replace("train()  # then trainer.", ""), names)
    assert [log["step"] for log in names["trainer"].state.log_history] == [3]


def test_open_clip_trains_with_the_diff(packed: Path, tmp_path: Path) -> None:
    """open_clip's own command trains for an epoch on shards of captions, and evaluates each sample of the split val."""
    for split in SPLITS:
        (tmp_path / "tars" / split).mkdir(parents=True)
        with wds.TarWriter(str(tmp_path / "tars" / split / "0.tar")) as tar:
            for number, sample in enumerate(shardflow.open(packed)[split]):
                tar.write({"__key__": f"{number:04}", "jpg": bytes(sample["jpg"]), "txt": f"picture {number}"})
    shardflow.index(tmp_path / "tars", to=tmp_path / "captions")
    spec = importlib.util.find_spec("open_clip_train")
    assert spec is not None
    assert spec.origin is not None
    package = shutil.copytree(Path(spec.origin).parent, tmp_path / "open_clip_train")
    data = package / "data.py"
    data.write_text(patched(data.read_text(encoding="utf-8"), diff_below(PAGE, "open_clip")))
    vision = {"image_size": 32, "layers": 1, "width": 64, "head_width": 32, "patch_size": 16}
    text = {"context_length": 77, "vocab_size": 49408, "width": 32, "heads": 2, "layers": 1}
    (tmp_path / "tiny.json").write_text(json.dumps({"embed_dim": 16, "vision_cfg": vision, "text_cfg": text}))
    (tmp_path / "train.py").write_text(
        "import sys, open_clip\nfrom open_clip_train.main import main\n"
        f"open_clip.add_model_config({str(tmp_path / 'tiny.json')!r})\nmain(sys.argv[1:])\n"
    )
    command = next(
        line for line in PAGES[PAGE].read_text(encoding="utf-8").splitlines() if "open_clip_train.main" in line
    )
    shown = command.split("open_clip_train.main ")[1].replace("captions", str(tmp_path / "captions"))
    shown = shown.replace("ViT-B-32", "tiny")
    options = ["--batch-size", 16, "--epochs", 1, "--workers", 0, "--device", "cpu", "--warmup", 1, "--name", "run"]
    run(str(tmp_path / "train.py"), *shown.split(), *options, "--logs", tmp_path / "logs")
    (results,) = (tmp_path / "logs/run/checkpoints/results.jsonl").read_text().splitlines()
    found = json.loads(results)
    assert (found["epoch"], found["num_samples"]) == (1, SPLITS["val"])
    assert (tmp_path / "logs/run/checkpoints/epoch_1.pt").exists()
