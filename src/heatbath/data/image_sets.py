"""What is known of the image data sets before a file is opened: torch is not needed for it."""

from __future__ import annotations

from dataclasses import dataclass

from heatbath.draws import Stream


@dataclass(frozen=True)
class ImageSet:
    """Facts about one data set.

    Attributes:
        shape: channels, height and width of an image.
        training_images: how many there are.
        classes: the name of each label.
        statistics: whose mean and standard deviation normalise it, see `STATISTICS`.
        split: the stream that shuffles images which come in one piece, before they are split; None where they come
            as training and test images.
    """

    shape: tuple[int, int, int]
    training_images: int
    classes: tuple[str, ...]
    statistics: str
    split: Stream | None = None


_DIGITS = tuple("0123456789")
_OBJECTS = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")

DATASETS = ("mnist5k", "mnist", "cifar10")
"""Those that are offered."""

OLD_SPLIT = "mnist5k-old"
"""mnist5k as it was split at first, by the numbers that also shuffle the first epoch of seed 0. Stored runs have it."""

IMAGE_SETS = {
    "mnist5k": ImageSet((1, 28, 28), 4_000, _DIGITS, "mnist", Stream.EMBEDDED_SPLIT),
    "mnist": ImageSet((1, 28, 28), 60_000, _DIGITS, "mnist"),
    "cifar10": ImageSet((3, 32, 32), 50_000, _OBJECTS, "cifar10"),
    OLD_SPLIT: ImageSet((1, 28, 28), 4_000, _DIGITS, "mnist", Stream.ORDER),
}

# Mean and standard deviation of the training images' channels, on a scale from 0 to 1.
STATISTICS = {
    "mnist": ((0.1307,), (0.3081,)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
}
