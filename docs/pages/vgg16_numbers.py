"""Numbers of docs/results.md and docs/evidence.md on VGG16."""

from __future__ import annotations

from itertools import combinations
from statistics import fmean
from types import SimpleNamespace

import numpy as np
from scipy import stats

from committed import check, field, interval, late_gain, means, records, runs_of, together, values, verdict
from heatbath import Record
from heatbath.paper import EXPERIMENTS
from heatbath.paper.figures_5_and_6 import PRINTED
from heatbath.paper.quantities import BEST_TEST, FINAL_TEST, MEAN_TEST, TAIL_LOSS, TAIL_TEST

_FAMILY = 1 - 0.1 / 14  # the level of the intervals of figure 4, which has 14 claims


def later_seeds() -> SimpleNamespace:
    """Return what the seeds of figure 4 say that were run after the second look."""
    later = {name: run for name, run in records().items() if run.config.model != "vgg16" or run.config.seed >= 5}
    found = [one for one in EXPERIMENTS["figure4"].figure(later, "paper").verdicts if "from scratch" in one.claim]
    judged = [one for one in found if one.interval is not None]
    check({one.outcome for one in found} == {"undecided"}, "the new five alone decide nothing")
    check(len(judged) == 3, "the three claims that they alone can judge")
    return SimpleNamespace(final=judged[0].interval)


def figure6() -> SimpleNamespace:
    """Return the ends of figure 6, and where our means cross the printed ones."""
    crossed = []
    networks = list(runs_of("figure6", "VGG16").values())
    for some, (printed, spread) in zip(networks, PRINTED.values(), strict=True):
        curve = np.mean([run.curve("test_accuracy") for run in some], axis=0)
        crossed.append([int(epoch) + 2 for epoch in np.nonzero(np.diff(curve > printed))[0]])
        between = slice(crossed[-1][0] - 1, crossed[-1][-1])
        apart = np.std([run.curve("test_accuracy")[between] for run in some], axis=0, ddof=1)
        check(bool(np.mean(apart > spread) > 0.5), "at most of these epochs our runs differ more than the printed ones")
    one, two = runs_of("figure6", "CNN").values()
    late = stats.ttest_rel([TAIL_TEST.of(run) for run in one], [TAIL_TEST.of(run) for run in two])
    _check_that_few_printed_runs_would_leave_it_open(networks[0])
    small, large = crossed
    return SimpleNamespace(
        ends=[fmean(map(FINAL_TEST.of, some)) for some in networks],
        seeds=[len(some) for some in networks],
        crossed=(small[0], small[-1]),
        crossed_large=(large[0], large[-3]),
        fallen=(large[-2], large[-1]),
        late=interval(late, 0.95 + 0.1 / 3),
        cnn=verdict("figure6", "CNN: two runs"),
        vgg16=verdict("figure6", "VGG16: two runs"),
        cnn_along=verdict("figure6", "CNN", "throughout"),
        vgg16_along=verdict("figure6", "VGG16: they"),
        printed=verdict("figure6", "C = 128"),
        printed_large=verdict("figure6", "C = 256"),
    )


def _check_that_few_printed_runs_would_leave_it_open(runs: list[Record]) -> None:
    """What would become of the verdict if the printed mean had an error of its own."""
    ours = [FINAL_TEST.of(run) for run in runs]
    printed, spread = next(iter(PRINTED.values()))
    gap, sd = np.mean(ours) - printed - 2 * spread, np.std(ours, ddof=1)

    def p_value(count: int) -> float:
        """That the means are two printed deviations apart or less, among the figure's six claims."""
        against = {"equal_var": False, "alternative": "greater"}
        return float(6 * stats.ttest_ind_from_stats(gap, sd, len(ours), 0.0, spread, count, **against).pvalue)

    check(min(map(p_value, range(2, 6))) > 0.05 > p_value(100), "were it one of five runs or fewer: undecided")


def from_scratch() -> SimpleNamespace:
    """Return the numbers of figure 4 from scratch."""
    groups = runs_of("figure4", "from scratch")
    tests = values(groups, FINAL_TEST)
    check([len(some) for some in tests.values()] == [10, 10, 10, 5, 5], "10 seeds of three protocols, 5 of two")
    ahead = [one > two for one, two in zip(tests["random"], tests["constant"], strict=True)]
    seed = ahead.index(False)
    *_, next_best, best = sorted(tests["constant"])
    check((ahead.count(False), tests["constant"][seed]) == (1, best), "random is above at nine of the ten seeds")
    others = [np.delete(tests[name], seed) for name in ("random", "constant")]
    without = 14 * stats.ttest_rel(*others, alternative="greater").pvalue
    check(without < 0.05, "without this seed the claim would be confirmed")
    looks = {}
    for name, quantity in (("final", FINAL_TEST), ("late", TAIL_TEST), ("best", BEST_TEST)):
        pair = values(groups, quantity)
        looks[name] = interval(stats.ttest_rel(pair["random"], pair["constant"]), 0.95)
    slower = {
        f"below_{period}": interval(
            stats.ttest_ind(tests[f"cyclic:{period}"], tests["random"], equal_var=False), _FAMILY
        )
        for period in (18, 30)
    }
    return SimpleNamespace(
        ends=means(groups, FINAL_TEST),
        constant=verdict("figure4", "higher final", "than constant", "scratch").interval,
        higher=verdict("figure4", "higher final", "than constant", "scratch"),
        seed=seed,
        outlier=best,
        outlier_gap=best - next_best,
        without=interval(stats.ttest_rel(*others), _FAMILY),
        looks=looks,
        below_6=interval(stats.ttest_rel(tests["cyclic:6"], tests["random"]), _FAMILY),
        **slower,
        reaches=verdict("figure4", "reaches the final", "scratch"),
        tuned=verdict("figure4", "higher final", "than constant", "ImageNet"),
        tuned_reaches=verdict("figure4", "reaches the final", "ImageNet"),
        caption=verdict("figure4", "higher final", "best cyclic", "scratch"),
        caption_best=verdict("figure4", "higher best", "best cyclic", "scratch"),
        apart=verdict("figure4", "not practically", "final", "scratch"),
        variance_p=stats.f_oneway(*tests.values()).pvalue,
        **_pairwise(tests),
    )


def _pairwise(tests: dict[str, list[float]]) -> dict[str, SimpleNamespace]:
    """All pairs of protocols at once, by Games and Howell."""
    names = list(tests)
    pairs = stats.tukey_hsd(*tests.values(), equal_var=False)
    low, high = pairs.confidence_interval(0.95)

    def gap(one: str, two: str) -> SimpleNamespace:
        i, j = names.index(one), names.index(two)
        return SimpleNamespace(estimate=fmean(tests[one]) - fmean(tests[two]), low=low[i, j], high=high[i, j])

    apart = {tuple(sorted((names[i], names[j]))) for i, j in combinations(range(5), 2) if pairs.pvalue[i, j] < 0.05}
    lower, higher = ("constant", "random", "cyclic:30"), ("cyclic:6", "cyclic:18")
    check(apart == {tuple(sorted((one, two))) for one in lower for two in higher}, "P = 6 and 18 end above P = 30")
    return {
        "over_constant": gap("cyclic:6", "constant"),
        "over_random": gap("cyclic:6", "random"),
        "fast_over_slow": gap("cyclic:6", "cyclic:30"),
        "slower_over_slow": gap("cyclic:18", "cyclic:30"),
    }


def check_the_order_of_the_protocols() -> None:
    """Check what the page says of the order, and of the training images."""
    groups = runs_of("figure4", "from scratch")
    for some in (groups, runs_of("figure3", "CNN")):
        best = {label: fmean(found) for label, found in values(some, BEST_TEST).items()}
        order = sorted(best, key=best.__getitem__)
        said = ["constant", "random", "cyclic:30", "cyclic:18", "cyclic:6"]
        check(order == said, "the best accuracies have the order of the CNN's")
    kept = [late_gain(groups, f"cyclic:{period}", "high", after=120) for period in (6, 18, 30)]
    check(min(kept) > 0.005, "VGG16 keeps the lead at the peak of the rate")
    known = [run.final("train_accuracy") or 0.0 for run in together(groups)]
    check(min(known) > 0.9999, "all runs end with every training image known")


def known_by_heart(run: Record) -> list[int]:
    """Return the epochs after which a run knows the training images."""
    return [epoch for epoch, share in enumerate(run.curve("train_accuracy"), 1) if share > 0.999]


def deepest_fall(run: Record) -> tuple[float, int]:
    """Return the lowest training accuracy after the run first knew them, and the epoch."""
    first = known_by_heart(run)[0]
    return min((share, epoch) for epoch, share in enumerate(run.curve("train_accuracy"), 1) if epoch > first)


def has_fallen(run: Record) -> bool:
    """Return whether the run then loses more than three in ten of them."""
    return deepest_fall(run)[0] < 0.7


def fell_before(run: Record) -> bool:
    """Return whether the run loses as much after it nearly knew them, but never had."""
    shares = run.curve("train_accuracy")[: known_by_heart(run)[0] - 1]
    nearly = next((epoch for epoch, share in enumerate(shares) if share >= 0.997), len(shares))
    return min(shares[nearly:], default=1.0) < 0.7


def falls() -> SimpleNamespace:
    """Return who falls out of knowing the training images, and how deep."""
    groups = runs_of("figure4", "from scratch")
    runs = together(groups)
    first = [known_by_heart(run)[0] for run in runs]
    early, later = ([run for run in runs if (run.config.seed < 5) == whether] for whether in (True, False))
    fallen = [run for run in early if has_fallen(run)]
    names = sorted(str(run.config.protocol) for run in fallen)
    check(names == sorted(["cyclic:6"] * 5 + ["cyclic:18"] * 5 + ["random"]), "all of P = 6 and 18, and one random")
    hot = all(run.curve("rate")[deepest_fall(run)[1] - 1] > 0.96 * run.config.lr for run in fallen)
    check(hot, "while their rate is at its mean or above")
    constant, fast = sorted((run for run in later if has_fallen(run)), key=deepest_fall)
    protocols = [str(run.config.protocol) for run in (constant, fast)]
    check(protocols == ["constant", "cyclic:6"], "of the later ones a constant rate and one of P = 6")
    (shallow,) = [run for run in later if not has_fallen(run) and deepest_fall(run)[0] < 0.8]
    others = sorted(
        (run for run in later if str(run.config.protocol) == "cyclic:6" and run is not fast), key=deepest_fall
    )
    check(len(others) == 4, "the other four of P = 6")
    check(sum(map(fell_before, others)) == 3, "three of these had been below 0.7 before")
    deep = [run for run in runs if has_fallen(run)]
    highest = all(has_fallen(max(groups[name], key=FINAL_TEST.of)) for name in ("constant", "random"))
    check(highest, "the constant and the random one as the highest of their ten")
    gone, kept = ([run for run in groups["cyclic:6"] if has_fallen(run) == whether] for whether in (True, False))
    check((len(gone), len(kept)) == (6, 4), "the six of P = 6 that fall, the four that do not")
    last = max(runs, key=lambda run: deepest_fall(run)[1])
    check((str(last.config.protocol), deepest_fall(last)[1]) == ("cyclic:6", 133), "in 133 one run of P = 6 falls")
    return SimpleNamespace(
        runs=len(runs),
        known=(min(first), max(first)),
        spared=min(deepest_fall(run)[0] for run in early if run not in fallen),
        constant=deepest_fall(constant)[0],
        random=deepest_fall(shallow)[0],
        others=(deepest_fall(others[0])[0], deepest_fall(others[-1])[0]),
        count=len(deep),
        lowest=min(map(FINAL_TEST.of, deep)),
        fallen=fmean(map(FINAL_TEST.of, gone)),
        kept=fmean(map(FINAL_TEST.of, kept)),
        last=deepest_fall(last)[0],
        late_spread=max(np.ptp(run.curve("test_accuracy")[134:]) for run in runs),
        **_fall_of_the_control(),
    )


def _fall_of_the_control() -> dict[str, float]:
    known = {run.run for run in together(runs_of("figure4", "from scratch"))}
    further = {label: runs for label, runs in runs_of("fair-control", "VGG16").items() if runs[0].run not in known}
    (fallen,) = [run for run in together(further) if has_fallen(run)]
    (beside,) = [[FINAL_TEST.of(run) for run in runs] for runs in further.values() if fallen in runs]
    check((len(together(further)), len(beside)) == (15, 5), "of the fair control's 15 further runs")
    check(FINAL_TEST.of(fallen) == np.median(beside), "in the middle of its five")
    return {"control": deepest_fall(fallen)[0], "control_end": FINAL_TEST.of(fallen)}


def from_imagenet() -> SimpleNamespace:
    """Return the numbers of figure 4 from ImageNet features."""
    groups = runs_of("figure4", "from ImageNet")
    runs = together(groups)
    looks = [values(groups, quantity) for quantity in (FINAL_TEST, BEST_TEST, TAIL_TEST, MEAN_TEST)]
    for look in looks:
        check(min(look, key=lambda name: fmean(look[name])) == "constant", "constant is the lowest again")
    leader = max(looks[3], key=lambda name: fmean(looks[3][name]))
    check(leader == "cyclic:30", "by which P = 30 leads")
    start = min(min(run.curve("test_accuracy")) for run in runs)
    check(start > 0.73036, "and stay above")
    first = [known_by_heart(run)[0] for run in runs]
    return SimpleNamespace(
        ends=means(groups, FINAL_TEST),
        p=[stats.f_oneway(*look.values()).pvalue for look in looks],
        runs=len(runs),
        start=start,
        known=(min(first), max(first)),
        kept=min(map(deepest_fall, runs))[0],
    )


def fair_control() -> SimpleNamespace:
    """Return the numbers of VGG16's fair control."""
    groups, scratch = runs_of("fair-control", "VGG16"), runs_of("figure4", "from scratch")
    check({len(runs) for runs in groups.values()} == {5}, "5 seeds each")
    first = all(groups[name] == scratch[name][:5] for name in ("constant", "random"))
    check(first, "the first two groups are figure 4's first five")
    late, along, ten = values(groups, TAIL_TEST), values(groups, MEAN_TEST), values(scratch, MEAN_TEST)
    losses = {label: np.log(some) for label, some in values(groups, TAIL_LOSS).items()}
    hot, pair = "constant, T of random", (ten["random"], ten["constant"])
    loss = interval(stats.ttest_ind(losses[hot], losses["random"], equal_var=False), 1 - 0.1 / 12)
    lowest = [int(np.argmin(run.curve("train_loss"))) + 1 for run in together(groups)]
    grown = all(TAIL_LOSS.of(run) > 1.2 * min(run.curve("train_loss")) for run in together(groups))
    check(grown, "and grows from there on")
    constant, random = ([known_by_heart(run)[0] for run in scratch[name]] for name in ("constant", "random"))
    slower = sum(one > two for one, two in zip(random, constant, strict=True))
    check(slower == 9, "it takes longer at nine of ten seeds")
    return SimpleNamespace(
        late={field(label): fmean(some) for label, some in late.items()},
        hottest=(min(late[hot]), max(late[hot])),
        ratio=groups["constant, T of update"][0].config.lr / groups["constant"][0].config.lr,
        along=interval(stats.ttest_ind(along[hot], along["random"], equal_var=False), 0.95),
        paired=interval(stats.ttest_rel(*pair), 0.95),
        welch=interval(stats.ttest_ind(*pair, equal_var=False), 0.95),
        learned=sorted(known_by_heart(run)[0] for run in groups[hot]),
        learned_random=(min(random), max(random)),
        learned_constant=(min(constant), max(constant)),
        loss=np.exp([np.mean(losses[hot]) - np.mean(losses["random"]), loss.low, loss.high]),
        lowest=(min(lowest), max(lowest)),
        accuracy=verdict("fair-control", "VGG16", "coupling gradient", "test accuracy"),
    )
