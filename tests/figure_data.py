"""Made-up figures that look like real ones: curves with bands, points by name, logarithmic axes, gaps and verdicts."""

from functools import cache

import numpy as np

from heatbath.report.page import write_report
from heatbath.report.panels import FigureData, Panel, Series
from heatbath.stats.intervals import Interval
from heatbath.stats.verdicts import Evidence, SeedsNeeded, Verdict

PROTOCOLS = ("constant", "random", "cyclic:6", "cyclic:18", "cyclic:30")

EVIL = "</script><script>window.pwned = 1</script><img src=x onerror='window.pwned = 1'>\"'&" + 50 * "W"


def _evidence(interval, first, second, if_false, if_true):
    return Evidence(if_false, if_true, interval, means=(first, second), sizes=(20, 20))


def curves(rng, start, end, rate, epochs=180):
    found = []
    for colour, name in enumerate(PROTOCOLS):
        epoch = np.arange(1, epochs + 1)
        last = end + 0.012 * (colour - 2) * abs(end - start)
        mean = last + (start - last) * np.exp(-epoch / rate) + 0.004 * abs(end - start) * rng.standard_normal(epochs)
        if name.startswith("cyclic"):
            mean += 0.03 * (start - end) * np.exp(-epoch / 90) * np.cos(2 * np.pi * epoch / int(name.split(":")[1]))
        mean = np.maximum(mean, 0.01 * (1 + 0.2 * rng.random(epochs)))
        half = 0.03 * abs(start - end) * (0.3 + np.exp(-epoch / 40))
        low, high = (tuple((mean + sign * half).tolist()) for sign in (-1, 1))
        found.append(Series(name, tuple(map(float, epoch)), tuple(mean.tolist()), low, high, colour=colour))
    return tuple(found)


def training_figure(name="figure1", title="Test accuracy of the CNN with five protocols"):
    rng = np.random.default_rng(len(name))
    verdicts = (
        Verdict(
            "The random protocol reaches the test accuracy of the best cyclic one.",
            "confirmed",
            _evidence(Interval(-0.0008, -0.0049, 0.0033, 0.90), 0.7304, 0.7312, 0.002, 1.0),
            0.01,
            2,
        ),
        Verdict(
            "The constant rate ends more than one point of accuracy below the random one.",
            "undecided",
            _evidence(Interval(0.009, -0.002, 0.020, 0.90), 0.7304, 0.7214, 0.105, 0.6),
            0.01,
            2,
            SeedsNeeded(43, 31, 76),
        ),
    )
    return FigureData(
        name,
        title,
        "Does a learning rate drawn anew for each mini-batch train as well as a cyclic one, and better than a constant "
        "one of the same mean?",
        (
            Panel("Test accuracy", "epoch", "test accuracy", curves(rng, 0.32, 0.73, 25)),
            Panel("Training loss", "epoch", "training loss", curves(rng, 2.1, 0.04, 18), y_log=True),
        ),
        verdicts,
        ("The paper's Eq. (14) lacks a factor 1/2; the temperature that the axis shows has it.",),
        {"model": "CNN, 3 blocks", "data": "CIFAR-10", "rate": "0.05", "batch": "128", "epochs": "180", "seeds": "20"},
    )


def categories_figure():
    rng = np.random.default_rng(5)
    batches = ("batch 64", "batch 256", "batch 1024")
    accuracy, loss = [], []
    for colour, name in enumerate(PROTOCOLS):
        y = 0.72 + 0.006 * rng.standard_normal(3)
        low, high = tuple((y - 0.005).tolist()), tuple((y + 0.005).tolist())
        accuracy.append(Series(name, batches, tuple(y.tolist()), low, high, "points", colour))
        gap = float(0.3 + 0.05 * colour)
        loss.append(Series(name, (name,), (gap,), (gap - 0.04,), (gap + 0.04,), "points", colour))
    verdict = Verdict(
        "Larger batches need a warmer protocol.",
        "contradicted",
        _evidence(Interval(0.011, 0.006, 0.016, 0.95), 0.731, 0.72, 1.0, 0.0007),
        0.0,
    )
    return FigureData(
        "figure3",
        "Accuracy for three batch sizes",
        "Which protocol wins as the batch grows?",
        (
            Panel("Best accuracy", "", "test accuracy", tuple(accuracy), note="Means over 20 seeds, 95 % intervals."),
            Panel("Gap between test and training loss", "", "loss gap", tuple(loss)),
        ),
        (verdict,),
        settings={"model": "VGG-16", "data": "CIFAR-10"},
        missing=("11 of 60 runs at batch 1024 are not finished.", "cyclic:30 diverged with 2 of 20 seeds."),
    )


def scatter_figure():
    rng = np.random.default_rng(9)
    rates = np.geomspace(1e-4, 0.3, 14)
    panels = []
    for title, power in (("MLP", 1.0), ("CNN", 1.1), ("VGG-16", 0.9)):
        found = []
        for colour, name in enumerate(PROTOCOLS[:2]):
            y = 2.0 * rates**power * (1 + colour) * np.exp(0.15 * rng.standard_normal(14))
            y_and_gap = tuple(None if i == 6 else value for i, value in enumerate(y.tolist()))
            low, high = (tuple((y * factor).tolist()) for factor in (0.75, 1.3))
            found.append(Series(name, tuple(rates.tolist()), y_and_gap, low, high, "points", colour))
        theory = tuple((2.0 * rates**power).tolist())
        found.append(Series("theory, Eq. (9)", tuple(rates.tolist()), theory, colour=5))
        panels.append(Panel(title, "learning rate", "temperature", tuple(found), x_log=True, y_log=True))
    return FigureData(
        "figure6",
        "Temperature against learning rate",
        "Is the temperature proportional to the rate, and twice as high with a random one?",
        tuple(panels),
        (Verdict("The temperature grows with the rate.", "undecided", Evidence(sizes=(0, 3), obstacle="empty"), 0.0),),
        ("The axis of the paper's panel (b) is in units of 10⁻³, not 10⁻².",),
    )


def empty_figure():
    return FigureData(
        "barrier-crossing", "Crossing a barrier", "How long does it take?", (), missing=("No run of it is there yet.",)
    )


def sparse_figure():
    """Single runs without intervals, a panel without any run, more series than hues, a level, and points by name."""
    lines = tuple(
        Series(f"run {i}", (1.0, 2.0, 3.0), (1.0 + i, None if i == 3 else 2.0 + i, 2.5 + i), colour=i)
        for i in range(11)
    )
    level = Series("equilibrium", (1.0, 3.0), (6.0, 6.0), (None, None), (None, None), colour=11)
    points = tuple(Series(n, (n,), (-0.1 * i,), (None,), (None,), "points", i) for i, n in enumerate(PROTOCOLS))
    panels = (
        Panel("Many", "steps", "temperature", (*lines, level)),
        Panel("None yet", "epoch", "loss", (), y_log=True, note="No runs yet."),
        Panel("By name", "", "difference", points),
    )
    return FigureData("sparse", "Few runs", "What if there is little to see?", panels)


def all_figures():
    return [training_figure(), categories_figure(), scatter_figure(), sparse_figure(), empty_figure()]


def evil_figure():
    panel = Panel(EVIL, EVIL, EVIL, (Series(EVIL, (EVIL, "b"), (1.0, 2.0), style="points"),), note=EVIL)
    verdict = Verdict(EVIL, "undecided", Evidence(part=EVIL), 0.0)
    return FigureData("evil", EVIL, EVIL, (panel,), (verdict,), (EVIL,), {EVIL: EVIL}, (EVIL,))


ABOUT = {
    "Settings": "scale laptop: 60 epochs, CNN and MLP on CIFAR-10 and MNIST",
    "Seeds": "20 for each protocol, 0 to 19",
    "Device": "NVIDIA H200, bfloat16",
    "Versions": "heatbath 0.4.0, torch 2.6.0, Python 3.11.7",
    "Time": "3 h 12 min of training, 1,240 runs",
}


@cache
def sample_report(folder):
    """Write a report on all of them, with hostile texts too; once a session, for the tests that only read it."""
    write_report([*all_figures(), evil_figure()], folder, about=ABOUT | {EVIL: EVIL})
    return folder
