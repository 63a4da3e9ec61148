"""What the documents say about VGG16 is what the committed records say."""

from itertools import combinations
from statistics import fmean

import numpy as np
from committed_records import PROSE, ROOT, late_gain, records, runs_of, together
from scipy import stats

from heatbath.paper import EXPERIMENTS, claims
from heatbath.paper.groups import BEST_TEST, FINAL_TEST, MEAN_TEST, TAIL_LOSS, TAIL_TEST


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
    assert "with the word of the new five where they alone say otherwise; they alone decide nothing" in PROSE
    later = {name: run for name, run in records().items() if run.config.model != "vgg16" or run.config.seed >= 5}
    verdicts = [v for v in EXPERIMENTS["figure4"].figure(later, "paper").verdicts if "from scratch" in v.claim]
    outcomes = [verdict.outcome for verdict in verdicts]
    assert len(outcomes) == 7
    assert set(outcomes) <= {"undecided", "not run"}
    assert outcomes.count("undecided") >= 3


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
    words = "ends at {:.3f} at C = 128, l = 2.5e-4 ({} seeds) and at {:.3f} at C = 256, l = 5e-4 ({})"
    assert words.format(*ends) in PROSE
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
    small, large = (fmean(map(FINAL_TEST.of, runs)) for runs in runs_of("figure6", "VGG16").values())
    tuned = runs_of("figure4", "from ImageNet")["random"]
    assert f"they end at {fmean(map(FINAL_TEST.of, tuned)):.3f} (random rate, C = 256, 3 seeds)" in text
    assert f"of which it speaks ({fmean(map(FINAL_TEST.of, tuned)):.2f} here)" in PROSE
    assert f"nearer to those of a training from scratch ({small:.2f})" in PROSE
    assert f"180 epochs end at {large:.3f} (C = 256) and {small:.3f} (C = 128, 5 seeds each)" in text
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
    assert f"is open at 10 seeds (by {low:.3f} to {high:.3f})" in PROSE
    ahead = [one > two for one, two in zip(tests["random"], tests["constant"], strict=True)]
    *_, next_best, best = sorted(tests["constant"])
    assert (ahead.count(False), tests["constant"][ahead.index(False)]) == (1, best)
    assert f"at the tenth a constant rate ends at {best:.4f}, {best - next_best:.4f} above the next" in PROSE
    late = values(groups, TAIL_TEST)
    for seeds, words in (
        (5, "({:.4f}; by pairs, 95 %: {:.4f} to {:.4f})"),
        (10, "all ten do not ({:.4f}; {:.4f} to {:.4f})"),
    ):
        low, high = stats.ttest_rel(late["random"][:seeds], late["constant"][:seeds]).confidence_interval(0.95)
        assert words.format((low + high) / 2, low, high) in PROSE
    low, high = stats.ttest_rel(tests["cyclic:6"], tests["random"]).confidence_interval(1 - 0.1 / 14)
    assert f"by {(low + high) / 2:.4f} for P = 6 (99.29 %: {low:.4f} to {high:.4f})" in PROSE
    low, high = stats.ttest_ind(tests["cyclic:18"], tests["random"], equal_var=False).confidence_interval(1 - 0.1 / 14)
    assert f"and {(low + high) / 2:.4f} for P = 18 ({low:.4f} to {high:.4f})" in PROSE
    p_value = f"{stats.f_oneway(*tests.values()).pvalue:.0e}".replace("-0", "-")
    assert f"analysis of variance: p = {p_value})" in PROSE
    tukey = stats.tukey_hsd(*tests.values())
    low, high = tukey.confidence_interval(0.95)
    fast, random, constant = map(protocols.index, ("cyclic:6", "random", "constant"))
    gaps = [ends["cyclic:6"] - ends[name] for name in ("constant", "random")]
    assert "P = 6 is {:.3f} above constant and {:.3f} above random".format(*gaps) in PROSE
    limits = low[fast, constant], high[fast, constant], low[fast, random], high[fast, random]
    assert "all ten pairs: {:.3f} to {:.3f} and {:.3f} to {:.3f})".format(*limits) in PROSE
    apart = {(protocols[i], protocols[j]) for i, j in combinations(range(5), 2) if tukey.pvalue[i, j] < 0.05}
    assert {(slow, fast) for slow in ("constant", "random") for fast in ("cyclic:6", "cyclic:18")} <= apart
    assert not {("constant", "random"), ("constant", "cyclic:30"), ("random", "cyclic:30")} & apart
    orders = []
    for some in (groups, runs_of("figure3", "CNN")):
        best = {label: fmean(found) for label, found in values(some, BEST_TEST).items()}
        orders.append(sorted(best, key=best.get))
    assert orders == 2 * [["constant", "random", "cyclic:30", "cyclic:18", "cyclic:6"]]
    assert "have the order of the CNN's, constant, random, P = 30, 18, 6; but VGG16 keeps the lead at the peak" in PROSE
    kept = [late_gain(groups, f"cyclic:{period}", "high", after=120) for period in (6, 18, 30)]
    assert min(kept) > 0.005
    assert min(run.final("train_accuracy") for run in together(groups)) > 0.9999


def test_the_words_on_the_falls_are_those_of_the_records():
    groups = runs_of("figure4", "from scratch")
    runs = together(groups)
    first = [known_by_heart(run)[0] for run in runs]
    assert f"All {len(runs)} runs come to know the training images by heart" in PROSE
    assert f"first between epochs {min(first)} and {max(first)}." in PROSE
    early = [run for run in runs if run.config.seed < 5]
    fallen = [run for run in early if has_fallen(run)]
    names = [str(run.config.protocol) for run in fallen]
    assert (len(early), sorted(names)) == (25, sorted(["cyclic:6"] * 5 + ["cyclic:18"] * 5 + ["random"]))
    for run in fallen:
        assert run.curve("rate")[deepest_fall(run)[1] - 1] > 0.96 * run.config.lr
    bar = min(FINAL_TEST.of(run) for run in fallen)
    assert sum(FINAL_TEST.of(run) < bar for run in early) == 13
    assert "end higher than 13 of the other 14" in PROSE
    later = [run for run in runs if run.config.seed >= 5]
    hot, fast = sorted((run for run in later if has_fallen(run)), key=deepest_fall)
    assert (len(later), str(hot.config.protocol), str(fast.config.protocol)) == (15, "constant", "cyclic:6")
    assert max(groups["constant"], key=FINAL_TEST.of) is hot
    words = "a constant rate, to {:.2f}, which ends at {:.3f}, the highest of its ten"
    assert words.format(deepest_fall(hot)[0], FINAL_TEST.of(hot)) in PROSE
    others = [run for run in later if str(run.config.protocol) == "cyclic:6" and run is not fast]
    assert (len(others), int(100 * min(deepest_fall(run)[0] for run in others))) == (4, 86)
    worst, *_, best = sorted(others, key=FINAL_TEST.of)
    words = "four of P = 6 do not fall below 0.86, and end at {:.3f} to {:.3f}, the highest of all 40 among them"
    assert words.format(FINAL_TEST.of(worst), FINAL_TEST.of(best)) in PROSE
    assert max(runs, key=FINAL_TEST.of) is best
    shares = best.curve("train_accuracy")[: known_by_heart(best)[0] - 1]
    low = min(range(50, len(shares)), key=shares.__getitem__)
    assert f"fallen before, from {max(shares[:low]):.3f} to {shares[low]:.2f}.)" in PROSE
    assert deepest_fall(best)[1] == 133
    assert f"in 133 one run of P = 6 falls a last time, to {deepest_fall(best)[0]:.2f})" in PROSE
    spreads = [np.ptp(run.curve("test_accuracy")[134:]) for run in runs]
    assert f"From epoch 135 on the test accuracy of each of the 40 varies by less than {max(spreads):.3f}" in PROSE


def test_the_words_on_the_falls_of_the_fair_control_are_those_of_the_records():
    groups = runs_of("fair-control", "VGG16")
    known = {run.run for run in together(runs_of("figure4", "from scratch"))}
    further = {label: runs for label, runs in groups.items() if runs[0].run not in known}
    (fallen,) = [run for run in together(further) if has_fallen(run)]
    (beside,) = [runs for runs in further.values() if fallen in runs]
    words = "15 further runs one falls, to {:.2f}, and ends at {:.3f}, in the middle of its five"
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
    constant, random, hotter, *_ = values(groups, MEAN_TEST).values()
    for one, two, words in (
        (hotter, random, "temperature is {:.4f} above that of the random rate (Welch, 95 %: {:.4f} to {:.4f})"),
        (random, constant, "random rate's is {:.4f} above that of the constant one of equal mean ({:.4f} to {:.4f})"),
    ):
        low, high = stats.ttest_ind(one, two, equal_var=False).confidence_interval(0.95)
        assert words.format((low + high) / 2, low, high) in PROSE
    _, random, hotter, *_ = map(fmean, values(runs_of("fair-control", "perceptron"), MEAN_TEST).values())
    assert f"as it is on the perceptron in small ({hotter - random:.4f})" in PROSE
    constant, random, hotter, *_ = (sorted(known_by_heart(run)[0] for run in runs) for runs in groups.values())
    words = (
        f"{random[0]} to {random[-1]} epochs, where the constant rate of equal mean takes {constant[0]} to "
        f"{constant[-1]} and that of equal temperature {hotter[0]} to {hotter[-2]}, and once {hotter[-1]}"
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
