"""What is known of the image data sets before a file is opened: torch is not needed for it."""

from __future__ import annotations

from dataclasses import dataclass

from heatbath.draws import Stream


@dataclass(frozen=True)
class ImageSet:
    """Facts about one data set."""

    shape: tuple[int, int, int]  # channels, height and width
    training_images: int
    statistics: str  # whose mean and standard deviation normalise it
    split: Stream | None = None  # shuffles images that come in one piece; None where training and test images come


DATASETS = ("mnist5k", "mnist", "cifar10")
"""Those that are offered."""

OLD_SPLIT = "mnist5k-old"
"""mnist5k as it was split at first, by the numbers that also shuffle the first epoch of seed 0. Stored runs have it."""

IMAGE_SETS = {
    "mnist5k": ImageSet((1, 28, 28), 4_000, "mnist", Stream.EMBEDDED_SPLIT),
    "mnist": ImageSet((1, 28, 28), 60_000, "mnist"),
    "cifar10": ImageSet((3, 32, 32), 50_000, "cifar10"),
    OLD_SPLIT: ImageSet((1, 28, 28), 4_000, "mnist", Stream.ORDER),
}

# Mean and standard deviation of the training images' channels, on a scale from 0 to 1.
STATISTICS = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
