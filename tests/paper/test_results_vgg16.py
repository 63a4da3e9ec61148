"""What the documents say about VGG16 is what the committed records say."""

import re
from itertools import combinations
from statistics import fmean

import numpy as np
from committed_records import PROSE, ROOT, late_gain, records, runs_of, together
from scipy import stats

from heatbath.paper import EXPERIMENTS, claims
from heatbath.paper.quantities import BEST_TEST, FINAL_TEST, MEAN_TEST, TAIL_LOSS, TAIL_TEST


def test_by_pairs_no_verdict_on_vgg16_would_be_another(monkeypatch):
    assert "By pairs no verdict on VGG16 would be another." in PROSE

    def verdicts():
        figures = [EXPERIMENTS[name].figure(records(), "paper") for name in ("figure4", "figure6", "fair-control")]
        return {verdict.claim: verdict.outcome for figure in figures for verdict in figure.verdicts}

    planned = verdicts()
    monkeypatch.setattr(claims, "PAIRED_FROM", 1)
    assert len(planned) == 32
    assert verdicts() == planned


def test_the_later_seeds_of_figure_4_alone_decide_nothing():
    later = {name: run for name, run in records().items() if run.config.model != "vgg16" or run.config.seed >= 5}
    verdicts = [v for v in EXPERIMENTS["figure4"].figure(later, "paper").verdicts if "from scratch" in v.claim]
    judged = [verdict for verdict in verdicts if "nothing to compare" not in verdict.detail]
    assert (len(verdicts), {verdict.outcome for verdict in verdicts}) == (7, {"undecided"})
    assert len(judged) == 3
    assert all(re.search("than (constant|random),", verdict.claim) for verdict in judged)
    assert "the three claims that they alone can judge, on random against constant, stay open" in PROSE
    found = re.search(r"difference (\S+ \(99.29 %: \S+ to \S+\));", judged[0].detail)[1]
    assert f"(final test accuracy {found.replace(' (', '; ')}" in PROSE


def test_the_words_on_figure_6_are_those_of_the_records():
    small, large = runs_of("figure6", "VGG16").values()
    crossed, ends = [], []
    for some, printed, spread in ((small, 0.73036, 0.00444), (large, 0.73002, 0.00526)):
        means = np.mean([run.curve("test_accuracy") for run in some], axis=0)
        crossed.append([epoch + 2 for epoch in np.nonzero(np.diff(means > printed))[0]])
        ends += [means[-1], len(some)]
        between = slice(crossed[-1][0] - 1, crossed[-1][-1])
        apart = np.std([run.curve("test_accuracy")[between] for run in some], axis=0, ddof=1)
        assert np.mean(apart > spread) > 0.5
    assert "at most of these epochs our runs differ more from each other than the printed ones do" in PROSE
    first, (*second, fallen, risen) = crossed
    words = "several times between epochs {} and {}, that for C = 256 between {} and {}, "
    assert words.format(first[0], first[-1], second[0], second[-1]) in PROSE
    assert f"and again between {fallen} and {risen}, when one run falls back" in PROSE
    ten = runs_of("figure4", "from scratch")["random"]
    assert large == ten[:5]
    words = (
        "ends at {:.3f} at C = 128, l = 2.5e-4 ({} seeds) and at {:.3f} at C = 256, l = 5e-4 ({}, the first of figure "
    )
    words += "4's ten, which end at {:.3f})"
    assert words.format(*ends, fmean(map(FINAL_TEST.of, ten))) in PROSE
    assert_the_printed_number_is_taken_as_exact(small)
    one, two = runs_of("figure6", "CNN").values()
    late = stats.ttest_rel([TAIL_TEST.of(run) for run in one], [TAIL_TEST.of(run) for run in two])
    low, high = late.confidence_interval(0.95 + 0.1 / 3)
    assert f"the mean of the last 20, {(low + high) / 2:.5f} ({low:.5f} to {high:.5f})" in PROSE


def assert_the_printed_number_is_taken_as_exact(runs):
    """What would become of the verdict if the printed mean had an error of its own."""
    assert "were it one of five runs or fewer, the claim would be undecided" in PROSE
    ours = [run.final("test_accuracy") for run in runs]
    printed, spread = 0.73036, 0.00444

    def p_value(count):
        """That the means are two printed deviations apart or less, among the figure's six claims."""
        gap = np.mean(ours) - printed - 2 * spread
        return (
            6
            * stats.ttest_ind_from_stats(
                gap, np.std(ours, ddof=1), len(ours), 0.0, spread, count, equal_var=False, alternative="greater"
            ).pvalue
        )

    assert min(map(p_value, range(2, 6))) > 0.05 > p_value(100)


def test_the_errata_have_the_numbers_of_the_records():
    text = " ".join((ROOT / "docs/errata.md").read_text().partition("## 9. VGG16")[2].split())
    small = fmean(map(FINAL_TEST.of, runs_of("figure6", "VGG16")["C = 128, l = 2.5e-4"]))
    tuned = runs_of("figure4", "from ImageNet")["random"]
    assert f"they end at {fmean(map(FINAL_TEST.of, tuned)):.3f} (random rate, C = 256, 3 seeds)" in text
    assert f"of which it speaks ({fmean(map(FINAL_TEST.of, tuned)):.2f} here)" in PROSE
    assert f"nearer to those of a training from scratch ({small:.2f})" in PROSE
    large = [FINAL_TEST.of(run) for run in runs_of("figure4", "from scratch")["random"]]
    words = f"180 epochs end at {fmean(large):.3f} (C = 256, {len(large)} seeds) and {small:.3f} (C = 128, 5 seeds)"
    assert words in text
    assert min(run.curve("test_accuracy")[0] for run in tuned) > 0.74


def values(runs, quantity):
    """One number for each run, by group."""
    return {label: [quantity.of(run) for run in some] for label, some in runs.items()}


def known_by_heart(run):
    """The epochs after which it knows the training images."""
    return [epoch for epoch, share in enumerate(run.curve("train_accuracy"), 1) if share > 0.999]


def deepest_fall(run):
    """The lowest training accuracy after it first knew them, and the epoch."""
    first = known_by_heart(run)[0]
    return min((share, epoch) for epoch, share in enumerate(run.curve("train_accuracy"), 1) if epoch > first)


def has_fallen(run):
    """Whether it then loses more than three in ten of them."""
    return deepest_fall(run)[0] < 0.7


def fell_before(run):
    """Whether it loses as much after it nearly knew them, but never had."""
    shares = run.curve("train_accuracy")[: known_by_heart(run)[0] - 1]
    nearly = next((epoch for epoch, share in enumerate(shares) if share >= 0.997), len(shares))
    return min(shares[nearly:], default=1.0) < 0.7


def test_the_words_on_vgg16_from_scratch_are_those_of_the_records():
    groups = runs_of("figure4", "from scratch")
    tests, protocols = values(groups, FINAL_TEST), list(groups)
    assert [len(some) for some in tests.values()] == [10, 10, 10, 5, 5]
    ends = {name: fmean(some) for name, some in tests.items()}
    assert "At 10 seeds constant ends at {constant:.3f} and random at {random:.3f}".format(**ends) in PROSE
    cyclic = [ends[f"cyclic:{period}"] for period in (6, 18, 30)]
    assert "at {:.3f} (P = 6, 10 seeds), {:.3f} (18) and {:.3f} (30, 5 seeds each)".format(*cyclic) in PROSE
    low, high = stats.ttest_rel(tests["random"], tests["constant"]).confidence_interval(1 - 0.1 / 14)
    assert f"is open: {(low + high) / 2:.4f} (99.29 %: {low:.4f} to {high:.4f})" in PROSE
    assert f"is open at 10 seeds ({(low + high) / 2:.4f}; 99.29 %: {low:.4f} to {high:.4f})" in PROSE
    ahead = [one > two for one, two in zip(tests["random"], tests["constant"], strict=True)]
    *_, next_best, best = sorted(tests["constant"])
    seed = ahead.index(False)
    assert (ahead.count(False), tests["constant"][seed]) == (1, best)
    words = f"at the other, seed {seed}, the constant rate ends at {best:.4f}, {best - next_best:.4f} above the next"
    assert words in PROSE
    others = [np.delete(tests[name], seed) for name in ("random", "constant")]
    low, high = stats.ttest_rel(*others).confidence_interval(1 - 0.1 / 14)
    assert 14 * stats.ttest_rel(*others, alternative="greater").pvalue < 0.05
    assert f"would be confirmed ({(low + high) / 2:.4f}; {low:.4f} to {high:.4f})" in PROSE
    gains = [values(groups, quantity) for quantity in (FINAL_TEST, TAIL_TEST, BEST_TEST)]
    limits = [stats.ttest_rel(some["random"], some["constant"]).confidence_interval(0.95) for some in gains]
    words = "{:.4f} to {:.4f} above in the last epoch, {:.4f} to {:.4f} in the mean of the last 20, {:.4f} to {:.4f} in"
    assert words.format(*(limit for pair in limits for limit in pair)) in PROSE
    low, high = stats.ttest_rel(tests["cyclic:6"], tests["random"]).confidence_interval(1 - 0.1 / 14)
    assert f"below P = 6, by {(low + high) / 2:.4f} (99.29 %: {low:.4f} to {high:.4f})" in PROSE
    for period, words in ((18, "P = 18, by {:.4f} ({:.4f} to {:.4f})"), (30, "not surely ({:.4f}; {:.4f} to {:.4f})")):
        welch = stats.ttest_ind(tests[f"cyclic:{period}"], tests["random"], equal_var=False)
        low, high = welch.confidence_interval(1 - 0.1 / 14)
        assert words.format((low + high) / 2, low, high) in PROSE
    p_value = f"{stats.f_oneway(*tests.values()).pvalue:.0e}".replace("-0", "-")
    assert f"analysis of variance: p = {p_value})" in PROSE
    pairs = stats.tukey_hsd(*tests.values(), equal_var=False)
    low, high = pairs.confidence_interval(0.95)
    constant, random, fast, slower, slow = range(5)
    gaps = [ends["cyclic:6"] - ends[name] for name in ("constant", "random")]
    assert "P = 6 is {:.3f} above constant and {:.3f} above random".format(*gaps) in PROSE
    limits = low[fast, constant], high[fast, constant], low[fast, random], high[fast, random]
    assert "all ten pairs: {:.3f} to {:.3f} and {:.3f} to {:.3f})".format(*limits) in PROSE
    found = [(ends[protocols[k]] - ends["cyclic:30"], low[k, slow], high[k, slow]) for k in (fast, slower)]
    words = "P = 6 and 18 end above P = 30, by {:.3f} ({:.3f} to {:.3f}) and {:.3f} ({:.3f} to {:.3f})"
    assert words.format(*(number for three in found for number in three)) in PROSE
    apart = {(protocols[i], protocols[j]) for i, j in combinations(range(5), 2) if pairs.pvalue[i, j] < 0.05}
    lower, higher = ("constant", "random", "cyclic:30"), ("cyclic:6", "cyclic:18")
    assert {tuple(sorted(pair)) for pair in apart} == {tuple(sorted((one, two))) for one in lower for two in higher}
    orders = []
    for some in (groups, runs_of("figure3", "CNN")):
        best = {label: fmean(found) for label, found in values(some, BEST_TEST).items()}
        orders.append(sorted(best, key=best.get))
    assert orders == 2 * [["constant", "random", "cyclic:30", "cyclic:18", "cyclic:6"]]
    assert "have the order of the CNN's, constant, random, P = 30, 18, 6; but VGG16 keeps the lead at the peak" in PROSE
    assert "of the rate (from epoch 121 on), where the CNN loses it" in PROSE
    kept = [late_gain(groups, f"cyclic:{period}", "high", after=120) for period in (6, 18, 30)]
    assert min(kept) > 0.005
    assert min(run.final("train_accuracy") for run in together(groups)) > 0.9999


def test_the_words_on_the_falls_are_those_of_the_records():
    groups = runs_of("figure4", "from scratch")
    runs = together(groups)
    first = [known_by_heart(run)[0] for run in runs]
    assert f"All {len(runs)} runs come to know the training images by heart" in PROSE
    assert f"first between epochs {min(first)} and {max(first)}," in PROSE
    early = [run for run in runs if run.config.seed < 5]
    fallen = [run for run in early if has_fallen(run)]
    names = [str(run.config.protocol) for run in fallen]
    assert (len(early), sorted(names)) == (25, sorted(["cyclic:6"] * 5 + ["cyclic:18"] * 5 + ["random"]))
    for run in fallen:
        assert run.curve("rate")[deepest_fall(run)[1] - 1] > 0.96 * run.config.lr
    spared = min(deepest_fall(run)[0] for run in early if run not in fallen)
    assert f"and one with the random rate; the next lowest is at {spared:.2f}." in PROSE
    later = [run for run in runs if run.config.seed >= 5]
    hot, fast = sorted((run for run in later if has_fallen(run)), key=deepest_fall)
    assert (len(later), str(hot.config.protocol), str(fast.config.protocol)) == (15, "constant", "cyclic:6")
    assert f"a constant rate, to {deepest_fall(hot)[0]:.2f}, and one of P = 6" in PROSE
    (shallow,) = [run for run in later if not has_fallen(run) and deepest_fall(run)[0] < 0.8]
    others = sorted(
        (run for run in later if str(run.config.protocol) == "cyclic:6" and run is not fast), key=deepest_fall
    )
    depths = [deepest_fall(run)[0] for run in (shallow, others[0], others[-1])]
    words = "But one with the random rate falls to {:.2f}, the other four of P = 6 to {:.2f} to {:.2f}"
    assert words.format(*depths) in PROSE
    assert (str(shallow.config.protocol), len(others)) == ("random", 4)
    assert sum(fell_before(run) for run in others) == 3
    assert "and three of these had been below 0.7 before, after 0.997" in PROSE
    deep = [run for run in runs if has_fallen(run)]
    assert f"All {len(deep)} end at {min(map(FINAL_TEST.of, deep)):.4f} or higher" in PROSE
    assert all(has_fallen(max(groups[name], key=FINAL_TEST.of)) for name in ("constant", "random"))
    fallen, kept = ([run for run in groups["cyclic:6"] if has_fallen(run) == whether] for whether in (True, False))
    means = fmean(map(FINAL_TEST.of, fallen)), fmean(map(FINAL_TEST.of, kept))
    assert (len(fallen), len(kept)) == (6, 4)
    assert "the four that do not ({:.4f} and {:.4f} in the mean)".format(*means) in PROSE
    last = max(runs, key=lambda run: deepest_fall(run)[1])
    assert (str(last.config.protocol), deepest_fall(last)[1]) == ("cyclic:6", 133)
    assert f"in 133 one run of P = 6 falls a last time, to {deepest_fall(last)[0]:.2f})" in PROSE
    spreads = [np.ptp(run.curve("test_accuracy")[134:]) for run in runs]
    assert f"From epoch 135 on the test accuracy of each of the 40 varies by less than {max(spreads):.3f}" in PROSE


def test_the_words_on_the_falls_of_the_fair_control_are_those_of_the_records():
    groups = runs_of("fair-control", "VGG16")
    known = {run.run for run in together(runs_of("figure4", "from scratch"))}
    further = {label: runs for label, runs in groups.items() if runs[0].run not in known}
    (fallen,) = [run for run in together(further) if has_fallen(run)]
    (beside,) = [runs for runs in further.values() if fallen in runs]
    words = "15 further runs the one that falls, to {:.2f}, ends at {:.3f}, in the middle of its five"
    assert words.format(deepest_fall(fallen)[0], FINAL_TEST.of(fallen)) in PROSE
    assert (len(together(further)), len(beside)) == (15, 5)
    assert FINAL_TEST.of(fallen) == np.median([FINAL_TEST.of(run) for run in beside])


def test_the_words_on_vgg16_from_imagenet_are_those_of_the_records():
    groups = runs_of("figure4", "from ImageNet")
    runs = together(groups)
    words = "constant ends at {:.4f}, random at {:.4f}, the cyclic protocols at {:.4f}, {:.4f} and {:.4f}"
    assert words.format(*map(fmean, values(groups, FINAL_TEST).values())) in PROSE
    looks = [values(groups, quantity) for quantity in (FINAL_TEST, BEST_TEST, TAIL_TEST, MEAN_TEST)]
    spreads = [float(f"{stats.f_oneway(*look.values()).pvalue:.1g}") for look in looks]
    words = (
        "p = 0.11 for the final accuracy, {} for the best, {} for the mean of the last 20 epochs, {} for the mean over"
    )
    assert words.format(*spreads[1:]) in PROSE
    assert f"{stats.f_oneway(*looks[0].values()).pvalue:.2f}" == "0.11"
    assert max(looks[3], key=lambda name: fmean(looks[3][name])) == "cyclic:30"
    assert all(min(look, key=lambda name: fmean(look[name])) == "constant" for look in looks)
    start = min(min(run.curve("test_accuracy")) for run in runs)
    assert start > 0.73036
    assert f"already after one epoch all {len(runs)} of them, under five protocols, are at {start:.3f} or more" in PROSE
    first = [known_by_heart(run)[0] for run in runs]
    assert (
        f"by heart between epochs {min(first)} and {max(first)} and keep them, to {min(map(deepest_fall, runs))[0]:.3f}"
        in PROSE
    )


def test_the_words_on_the_fair_control_are_those_of_the_records():
    groups = runs_of("fair-control", "VGG16")
    constant, random, hotter, update, warmer = values(groups, TAIL_TEST).values()
    ratio = groups["constant, T of update"][0].config.lr / groups["constant"][0].config.lr
    words = (
        f"ends at {fmean(random):.3f} in the mean of the last 20 epochs, the constant rate of equal mean at "
        f"{fmean(constant):.3f}, that of equal temperature at {fmean(hotter):.3f} ({min(hotter):.3f} to "
        f"{max(hotter):.3f} by seed); a draw on the step at {fmean(update):.3f}, and the constant rate of its "
        f"temperature, {ratio:.3f} l, at {fmean(warmer):.3f}."
    )
    assert words in PROSE
    assert {len(runs) for runs in groups.values()} == {5}
    scratch = runs_of("figure4", "from scratch")
    assert all(groups[name] == scratch[name][:5] for name in ("constant", "random"))
    assert "None of the six claims is decided at 5 seeds each (the first two groups are figure 4's first five)" in PROSE
    _, random, hotter, *_ = values(groups, MEAN_TEST).values()
    low, high = stats.ttest_ind(hotter, random, equal_var=False).confidence_interval(0.95)
    words = "temperature is {:.4f} above that of the random rate (Welch, 95 %: {:.4f} to {:.4f})"
    assert words.format((low + high) / 2, low, high) in PROSE
    ten = values(scratch, MEAN_TEST)
    paired = stats.ttest_rel(ten["random"], ten["constant"]).confidence_interval(0.95)
    welch = stats.ttest_ind(ten["random"], ten["constant"], equal_var=False).confidence_interval(0.95)
    words = "at figure 4's ten seeds by {:.4f} (by pairs, 95 %: {:.4f} to {:.4f}; Welch: {:.4f} to {:.4f})"
    assert words.format(sum(paired) / 2, *paired, *welch) in PROSE
    _, random, hotter, *_ = map(fmean, values(runs_of("fair-control", "perceptron"), MEAN_TEST).values())
    assert f"as it is on the perceptron in small ({hotter - random:.4f})" in PROSE
    constant, random = ([known_by_heart(run)[0] for run in scratch[name]] for name in ("constant", "random"))
    assert [one > two for one, two in zip(random, constant, strict=True)].count(True) == 9
    hotter = sorted(known_by_heart(run)[0] for run in groups["constant, T of random"])
    words = (
        f"by heart, {min(random)} to {max(random)} epochs against {min(constant)} to {max(constant)}; the constant "
        f"rate of equal temperature takes {hotter[0]} to {hotter[-2]}, and once {hotter[-1]}."
    )
    assert words in PROSE
    _, random, hotter, *_ = (np.log(some) for some in values(groups, TAIL_LOSS).values())
    welch = stats.ttest_ind(hotter, random, equal_var=False).confidence_interval(1 - 0.1 / 12)
    ratio, low, high = np.exp([np.mean(hotter) - np.mean(random), *welch])
    assert f"rate's is {ratio:.2f} times that of the random one (99.17 %: {low:.2f} to {high:.2f};" in PROSE
    lowest = [int(np.argmin(run.curve("train_loss"))) + 1 for run in together(groups)]
    assert f"It is lowest between epochs {min(lowest)} and {max(lowest)} and grows from there on" in PROSE
    for run in together(groups):
        assert TAIL_LOSS.of(run) > 1.2 * min(run.curve("train_loss"))
