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


def test_the_words_on_vgg16_from_scratch_are_those_of_the_records():
    groups = runs_of("figure4", "from scratch")
    runs, tests, protocols = together(groups), values(groups, FINAL_TEST), list(groups)
    ends = {name: fmean(some) for name, some in tests.items()}
    assert "constant ends at {constant:.3f} and random at {random:.3f}".format(**ends) in PROSE
    cyclic = [ends[f"cyclic:{period}"] for period in (6, 18, 30)]
    assert "at {:.3f} (P = 6), {:.3f} (18) and {:.3f} (30)".format(*cyclic) in PROSE
    low, high = stats.ttest_rel(tests["random"], tests["constant"]).confidence_interval(1 - 0.1 / 14)
    assert f"by pairs it would be {(low + high) / 2:.4f}, {low:.4f} to {high:.4f}, and open too" in PROSE
    late = values(groups, TAIL_TEST)
    assert all(one > two for one, two in zip(late["random"], late["constant"], strict=True))
    low, high = stats.ttest_rel(late["random"], late["constant"]).confidence_interval(0.95)
    words = f"at every seed, by {(low + high) / 2:.4f} (by pairs, 95 %: {low:.4f} to {high:.4f})"
    assert words in PROSE
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
    assert min(run.final("train_accuracy") for run in runs) > 0.9999
    first = [known_by_heart(run)[0] for run in runs]
    assert f"All {len(runs)} runs first know the training images by heart" in PROSE
    assert f"between epochs {min(first)} and {max(first)}" in PROSE
    falls = {run.run: deepest_fall(run) for run in runs}
    deep = [run for run in runs if falls[run.run][0] < 0.7]
    assert {str(run.config.protocol) for run in deep} == {"cyclic:6", "cyclic:18", "random"}
    assert [str(run.config.protocol) for run in deep].count("random") == 1
    assert len(deep) == 11
    assert f"to between {min(falls.values())[0]:.2f} and {max(falls[run.run][0] for run in deep):.2f}" in PROSE
    others = [falls[run.run][0] for run in runs if run not in deep]
    assert f"the other 14 only to {min(others):.2f} or less far" in PROSE
    for run in deep:
        assert run.curve("rate")[falls[run.run][1] - 1] > 0.96 * run.config.lr
    bar = min(run.final("test_accuracy") for run in deep)
    assert f"all end at {bar:.4f} or higher, which one of the other 14 reaches" in PROSE
    assert sum(run.final("test_accuracy") >= bar for run in runs if run not in deep) == 1
    cooler = runs_of("figure6", "VGG16")["C = 128, l = 2.5e-4"]
    assert [run.final("test_accuracy") >= bar for run in cooler].count(True) == 2
    assert f"none of which fell below {min(map(deepest_fall, cooler))[0]:.2f}" in PROSE
    depth = stats.spearmanr([falls[run.run][0] for run in deep], [run.final("test_accuracy") for run in deep])
    assert f"(rank correlation {depth.statistic:.2f})" in PROSE
    late = [run.curve("test_accuracy")[130:] for run in runs]
    assert f"varies by less than {max(max(one) - min(one) for one in late):.3f}." in PROSE


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
    seeds = {len(constant), len(random)}, {len(hotter), len(update), len(warmer)}
    assert seeds == ({5}, {3})
    assert "There are 5 seeds of the first two, which are figure 4's, and 3 of the others" in PROSE
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
        f"{constant[-1]} and that of equal temperature {hotter[0]}, {hotter[1]} and {hotter[2]}"
    )
    assert words in PROSE
    _, random, hotter, *_ = (np.mean(np.log(some)) for some in values(groups, TAIL_LOSS).values())
    assert f"the constant rate's is {np.exp(hotter - random):.2f} times that of the random one (not decided)" in PROSE
    lowest = [int(np.argmin(run.curve("train_loss"))) + 1 for run in together(groups)]
    assert f"It is lowest between epochs {min(lowest)} and {max(lowest)} and grows from there on" in PROSE
    for run in together(groups):
        assert TAIL_LOSS.of(run) > 1.2 * min(run.curve("train_loss"))


def test_the_words_on_the_falls_of_the_fair_control_are_those_of_the_records():
    figure4 = together(runs_of("figure4", "from scratch"))
    known = {run.run for run in figure4}
    further = [run for run in together(runs_of("fair-control", "VGG16")) if run.run not in known]
    assert len(further) == 9
    assert "Nine further runs, those of the fair control" in PROSE
    fallen, *others = sorted(further, key=lambda run: deepest_fall(run)[0])
    best = max(others, key=FINAL_TEST.of)
    assert f"the one of them that falls, to {deepest_fall(fallen)[0]:.2f}, ends at {FINAL_TEST.of(fallen):.3f}" in PROSE
    assert f"no other falls below {deepest_fall(others[0])[0]:.3f}, but one ends at {FINAL_TEST.of(best):.3f}" in PROSE
    assert sum(FINAL_TEST.of(run) > FINAL_TEST.of(best) for run in figure4) == 2
    assert "which only two of the 25 exceed" in PROSE
    assert all(FINAL_TEST.of(fallen) < FINAL_TEST.of(run) for run in figure4 if deepest_fall(run)[0] < 0.7)
