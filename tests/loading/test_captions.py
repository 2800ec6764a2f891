"""Vision and language, end to end: captions are tokenized in the workers; a CLIP and a small VLM learn from them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - the usual name
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import nn

import shardflow
from tests.helpers.folders import encoded
from tests.helpers.making import write_dataset

COLOURS = {"red": (220, 30, 30), "green": (30, 200, 40), "blue": (40, 50, 220), "yellow": (230, 220, 40)}
SIDES = ("left", "right")
LENGTH, WIDTH = 6, 32  # tokens of a caption, channels of the models


@pytest.fixture(scope="module")
def drawn(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sixty-four pictures of a bar at the left or at the right, with their captions."""
    samples = []
    for number in range(64):
        colour, side = [*COLOURS][number % 4], SIDES[number // 4 % 2]
        pixels = np.random.default_rng(number).integers(100, 156, (32, 32, 3), dtype=np.uint8)
        pixels[:, slice(0, 12) if side == "left" else slice(20, 32)] = COLOURS[colour]
        parts = {"png": encoded(Image.fromarray(pixels), "PNG"), "txt": f"a {colour} bar at the {side}".encode()}
        samples.append((f"{number:04}", parts))
    return write_dataset(tmp_path_factory.mktemp("data") / "drawn", {"train": [samples[:32], samples[32:]]})


def trained_tokenizer() -> Tokenizer:
    """Return a tokenizer that knows the words of the captions; it pads to one length."""
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    captions = [f"a {colour} bar at the {side}" for colour in COLOURS for side in SIDES]
    tokenizer.train_from_iterator(captions, trainers.WordLevelTrainer(special_tokens=["[PAD]", "[UNK]"]))
    tokenizer.enable_padding(length=LENGTH)
    tokenizer.enable_truncation(LENGTH)
    return tokenizer


class Tokenize:
    """Tokenizes the caption of a sample, in which the sides change places where its image is mirrored."""

    def __init__(self, encode: Any) -> None:
        self.encode = encode

    def __call__(self, sample: dict[str, Any]) -> dict[str, Any]:
        """Return the image in floats and the tokens of its caption."""
        words = sample["txt"].split()
        if sample["flipped"]:
            words[-1] = SIDES[1 - SIDES.index(words[-1])]
        return {"image": sample["image"] / 255, "tokens": torch.tensor(self.encode(" ".join(words)))}


def loader(url: Path, encode: Any, workers: int) -> shardflow.Loader:
    """Return a loader of images and tokens."""
    transform = shardflow.annotations.WholeSample(Tokenize(encode), returns=("image", "tokens"))
    crop = shardflow.decoders.RandomResizedCrop(32, scale=(0.8, 1), ratio=(0.9, 1.1))
    fields = ("image", "txt", "flipped")
    return shardflow.Loader(
        url, batch_size=16, fields=fields, decoder=crop, transform=transform, num_workers=workers, seed=1
    )


def patches(images: torch.Tensor) -> torch.Tensor:
    """Return patches of 8 x 8 pixels: [B, 16, 192]."""
    return 4 * F.unfold(images - 0.5, 8, stride=8).transpose(1, 2)


def test_a_clip_learns_colours_and_sides(drawn: Path) -> None:
    """With `tokenizers` in a worker: the loss falls, and each caption is nearest to an image of its colour and side."""
    torch.manual_seed(0)
    tokenizer = trained_tokenizer()
    words = nn.Embedding(tokenizer.get_vocab_size(), WIDTH)
    image_tower = nn.Sequential(nn.Flatten(), nn.Linear(16 * 192, 64), nn.GELU(), nn.Linear(64, WIDTH))
    optimizer = torch.optim.AdamW([*words.parameters(), *image_tower.parameters()], lr=3e-3)

    def similarities(images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        return F.normalize(image_tower(patches(images))) @ F.normalize(words(tokens).sum(1)).T * 10

    batches, losses = loader(drawn, lambda text: tokenizer.encode(text).ids, workers=1), []
    for _ in range(12):
        for images, tokens in batches:
            scores = similarities(images, tokens)
            is_same = (tokens[:, None] == tokens).all(2).float()
            targets = is_same / is_same.sum(1, keepdim=True)
            loss = (F.cross_entropy(scores, targets) + F.cross_entropy(scores.T, targets)) / 2
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    batches.close()
    assert sum(losses[-4:]) < 0.75 * sum(losses[:4])
    with torch.inference_mode():
        nearest = similarities(images, tokens).argmax(1)
    assert (tokens[nearest] == tokens).all(1).float().mean() > 0.8


def test_a_small_vlm_learns_to_caption(drawn: Path) -> None:
    """With a tokenizer and a decoder of `transformers`: image tokens stand before the text, and captions are learnt."""
    from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast

    torch.manual_seed(0)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=trained_tokenizer(), pad_token="[PAD]", unk_token="[UNK]")
    sizes: dict[str, Any] = {"n_positions": 16 + LENGTH, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "use_cache": False}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    config = GPT2Config(vocab_size=len(tokenizer), bos_token_id=None, eos_token_id=None, **sizes, **dropout)
    model, eyes = GPT2LMHeadModel(config), nn.Linear(192, WIDTH)
    optimizer = torch.optim.AdamW([*model.parameters(), *eyes.parameters()], lr=3e-3)

    def predictions(images: torch.Tensor, tokens: torch.Tensor) -> torch.Tensor:
        inputs = torch.cat([eyes(patches(images)), model.transformer.wte(tokens)], dim=1)
        logits: torch.Tensor = model(inputs_embeds=inputs).logits
        return logits[:, 15:-1]  # that of the last patch predicts the first word

    batches, losses = loader(drawn, lambda text: tokenizer(text).input_ids, workers=0), []
    for _ in range(22):
        for images, tokens in batches:
            loss = F.cross_entropy(predictions(images, tokens).flatten(0, 1), tokens.flatten())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
    assert losses[-1] < 0.2  # without the image it stays above ln(8) / 6 = 0.35
    with torch.inference_mode():
        found = predictions(images, tokens).argmax(2)
    assert (found[:, 1] == tokens[:, 1]).float().mean() > 0.8  # the colour
