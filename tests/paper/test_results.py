"""The committed records rebuild every figure and verdict, and the documents say what they say."""

import json
import re
from itertools import combinations
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from scipy import stats

from heatbath import cli
from heatbath.archives import read_lines
from heatbath.paper import EXPERIMENTS, claims
from heatbath.paper.claims import LOSS_MARGIN
from heatbath.paper.groups import BEST_TEST, FINAL_TEST, MEAN_TEST, ROUGHNESS, TAIL_LOSS, TAIL_TEST
from heatbath.thermostat import Thermostat

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def rebuilt(tmp_path_factory):
    out = tmp_path_factory.mktemp("report")
    assert cli.main(["report", str(ROOT / "results"), "--out", str(out)]) == 0
    return out


def test_the_records_rebuild_the_report(rebuilt):
    page = (rebuilt / "report.html").read_text()
    for name in (
        "figure1",
        "figure2",
        "figure3",
        "figure5",
        "figure6",
        "fair-control",
        "laws",
        "delta",
        "collapse",
        "period",
        "theory",
        "figure4",
        "temperature",
    ):
        assert (rebuilt / f"{name}.svg").stat().st_size > 10_000
        assert f'id="{name}"' in page


def test_the_documents_have_the_verdicts_of_the_records(rebuilt):
    table = (rebuilt / "verdicts.md").read_text()
    assert table.count("\n") > 40
    assert table in (ROOT / "docs/results.md").read_text()


def test_the_table_of_the_readme_agrees(rebuilt):
    """Its numbers are those of the verdicts, to the digits that it gives."""
    details = (rebuilt / "verdicts.md").read_text()
    section = (ROOT / "README.md").read_text().partition("| claim, at the paper")[2].partition("\n\n")[0]
    numbers = re.findall(r"(?<![\d.])-?\d+\.\d{3,}", section)
    assert len(numbers) > 20
    for number in numbers:
        assert number in details
    assert len(re.findall(r"\| (?:confirmed|contradicted|undecided|[A-Za-z16: ]+ confirmed)", section)) == 13


@pytest.fixture(scope="module")
def prose():
    """The words before the table, on one line."""
    return " ".join((ROOT / "docs/results.md").read_text().partition("## All claims")[0].split())


@pytest.mark.parametrize(("figure", "file"), [("figure1", "perceptron"), ("figure2", "cnn")])
def test_the_words_on_the_way_gone_are_those_of_the_records(prose, figure, file):
    records = {record.run: record for record in read_lines(ROOT / f"results/{file}.jsonl.gz")}
    over_epochs, over_way, gone = [], [], {}
    parts = [45, *range(18, 181)]  # of the way, in epochs of a constant rate
    for group in EXPERIMENTS[figure].groups("paper"):
        runs = [records[config.run] for config in group.configs if config.run in records]
        ways = [np.cumsum(run.curve("rate")) / run.config.lr for run in runs]
        losses = [np.log(run.curve("train_loss")) for run in runs]
        over_epochs.append([np.mean([loss[k - 1] for loss in losses]) for k in (10, 45, 180)])
        over_way.append(np.mean([np.interp(parts, way, loss) for way, loss in zip(ways, losses, strict=True)], axis=0))
        gone[group.label] = np.mean([way[-20:].mean() / 180 for way in ways])
    early, later, last = np.exp(np.ptp(over_epochs, axis=0))
    quarter, *others = np.exp(np.ptp(over_way, axis=0))
    if figure == "figure1":
        assert f"up to a factor of {early:.2f} apart, after 45 epochs {later:.2f}" in prose
        pair = [row[2] for row, label in zip(over_epochs, gone, strict=True) if label in ("cyclic:6", "cyclic:30")]
        words = f"these two are {100 * np.ptp(pair):.1f} % apart and no pair more than {100 * (last - 1):.1f} %"
        assert words in prose
        assert f"{quarter:.2f} apart at a quarter of it, at most {max(others):.3f} after the first tenth" in prose
    else:
        words = f"factors of {early:.2f} and {later:.2f} after 10 and 45 epochs, {quarter:.3f} at a quarter of the way"
        assert f"{words} and at most {max(others):.3f} after the first tenth" in prose
        words = (
            f"the first has gone {gone['cyclic:6']:.3f} of the way on average and the second {gone['cyclic:30']:.3f}"
        )
        assert words in prose


def test_the_words_on_the_choice_of_the_test_are_those_of_the_records(prose):
    """By Welch's test, the one planned first: what the two verdicts that depend on the choice would be."""
    records = {
        record.run: record for name in ("cnn", "perceptron") for record in read_lines(ROOT / f"results/{name}.jsonl.gz")
    }

    def values(group, quantity):
        return [quantity.of(records[config.run]) for config in group.configs if config.run in records]

    losses = [np.log(values(group, TAIL_LOSS)) for group in EXPERIMENTS["figure2"].groups("paper")]
    margin, options = np.log(LOSS_MARGIN), {"equal_var": False, "alternative": "less"}
    sides = [
        max(stats.ttest_ind(a, b + margin, **options).pvalue, stats.ttest_ind(b, a + margin, **options).pvalue)
        for a, b in combinations(losses, 2)
    ]
    assert f"the training losses of figure 2 are the same (p = {5 * max(sides):.1g};" in prose
    groups = {group.label: values(group, ROUGHNESS) for group in EXPERIMENTS["coupling"].groups("paper")}
    rougher = stats.ttest_ind(groups["random"], groups["random update"], equal_var=False, alternative="greater")
    assert f"more than one on the step (p = {4 * rougher.pvalue:.3f})" in prose


def test_by_pairs_no_verdict_on_vgg16_would_be_another(prose, monkeypatch):
    assert "By pairs no verdict of figures 4 and 6 would be another." in prose
    records = {
        record.run: record for name in ("cnn", "vgg16") for record in read_lines(ROOT / f"results/{name}.jsonl.gz")
    }

    def verdicts():
        figures = [EXPERIMENTS[name].figure(records, "paper") for name in ("figure4", "figure6")]
        return {verdict.claim: verdict.outcome for figure in figures for verdict in figure.verdicts}

    planned = verdicts()
    monkeypatch.setattr(claims, "PAIRED_FROM", 1)
    assert len(planned) == 20
    assert verdicts() == planned


def test_the_words_on_figure_6_are_those_of_the_records(prose):
    runs = [run for run in read_lines(ROOT / "results/vgg16.jsonl.gz") if str(run.config.protocol) == "random"]
    crossed, ends = [], []
    for size, printed in ((128, 0.73036), (256, 0.73002)):
        some = [run for run in runs if run.config.batch_size == size and run.config.weights is None]
        means = np.mean([run.curve("test_accuracy") for run in some], axis=0)
        crossed.append([epoch + 2 for epoch in np.nonzero(np.diff(means > printed))[0]])
        ends += [means[-1], len(some)]
        between = slice(crossed[-1][0] - 1, crossed[-1][-1])
        apart = np.std([run.curve("test_accuracy")[between] for run in some], axis=0, ddof=1)
        assert np.mean(apart > (0.00444 if size == 128 else 0.00526)) > 0.5
    assert "at most of these epochs our runs differ more from each other than the printed ones do" in prose
    first, (*second, fallen, risen) = crossed
    words = "several times between epochs {} and {}, that for C = 256 between {} and {}, "
    assert words.format(first[0], first[-1], second[0], second[-1]) in prose
    assert f"and again between {fallen} and {risen}, when one run falls back" in prose
    words = "ends at {:.3f} at C = 128, l = 2.5e-4 ({} seeds) and at {:.3f} at C = 256, l = 5e-4 ({})"
    assert words.format(*ends) in prose
    assert_the_printed_number_is_taken_as_exact(prose, runs)
    cnns = {record.run: record for record in read_lines(ROOT / "results/cnn.jsonl.gz")}
    one, two = ([cnns[config.run] for config in group.configs] for group in EXPERIMENTS["figure6"].groups("paper")[:2])
    late = stats.ttest_rel([TAIL_TEST.of(run) for run in one], [TAIL_TEST.of(run) for run in two])
    low, high = late.confidence_interval(0.95 + 0.1 / 3)
    assert f"the mean of the last 20, {(low + high) / 2:.5f} ({low:.5f} to {high:.5f})" in prose
    sharing = [run for run in runs if run.config.batch_size == 128]
    seconds = [fmean(run.seconds for run in some) for some in (one, two, sharing)]
    assert "took {:.0f}, {:.0f} and {:.0f} s".format(*seconds) in prose


def assert_the_printed_number_is_taken_as_exact(prose, runs):
    """What would become of the verdict if the printed mean had an error of its own."""
    assert "were it one of five runs or fewer, the claim would be undecided" in prose
    ours = [run.final("test_accuracy") for run in runs if run.config.batch_size == 128]
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
    random = [run for run in read_lines(ROOT / "results/vgg16.jsonl.gz") if str(run.config.protocol) == "random"]

    def end(size, weights):
        some = [run for run in random if (run.config.batch_size, run.config.weights) == (size, weights)]
        return fmean(run.final("test_accuracy") for run in some)

    assert f"they end at {end(256, 'imagenet'):.3f} (random rate, C = 256, 3 seeds)" in text
    assert f"180 epochs end at {end(256, None):.3f} (C = 256) and {end(128, None):.3f} (C = 128, 5 seeds each)" in text
    assert min(run.curve("test_accuracy")[0] for run in random if run.config.weights) > 0.74


def test_what_chance_explains_is_that_of_the_report(prose, rebuilt):
    told = re.findall(
        r"(\w+) explains [^.]*(?:\.\d+[^.]*)*, where chance would (\d\.\d\d)\.", (rebuilt / "report.html").read_text()
    )
    chances = {name: float(chance) for name, chance in told}
    knobs = [chance for name, chance in chances.items() if name != "T"]
    assert len(knobs) == 3
    assert f"values, would explain {chances['T']:.2f}, and a knob {min(knobs):.2f} to {max(knobs):.2f};" in prose


PROTOCOLS = ("constant", "random", "cyclic:6", "cyclic:18", "cyclic:30")


def vgg16_runs(weights):
    """Those of figure 4."""
    records = read_lines(ROOT / "results/vgg16.jsonl.gz")
    return [run for run in records if run.config.batch_size == 256 and run.config.weights == weights]


def by_protocol(runs, quantity=FINAL_TEST):
    """The values under each protocol, in the order of the seeds."""
    ordered = sorted(runs, key=lambda run: run.config.seed)
    return {name: [quantity.of(run) for run in ordered if str(run.config.protocol) == name] for name in PROTOCOLS}


def known_by_heart(run):
    """The epochs after which it knows the training images."""
    return [epoch for epoch, share in enumerate(run.curve("train_accuracy"), 1) if share > 0.999]


def deepest_fall(run):
    """The lowest training accuracy after it first knew them, and the epoch."""
    first = known_by_heart(run)[0]
    return min((share, epoch) for epoch, share in enumerate(run.curve("train_accuracy"), 1) if epoch > first)


def test_the_words_on_vgg16_from_scratch_are_those_of_the_records(prose):
    runs = vgg16_runs(None)
    tests = by_protocol(runs)
    ends = {name: fmean(some) for name, some in tests.items()}
    assert "constant ends at {constant:.3f} and random at {random:.3f}".format(**ends) in prose
    cyclic = [ends[f"cyclic:{period}"] for period in (6, 18, 30)]
    assert "at {:.3f} (P = 6), {:.3f} (18) and {:.3f} (30)".format(*cyclic) in prose
    low, high = stats.ttest_rel(tests["random"], tests["constant"]).confidence_interval(1 - 0.1 / 14)
    assert f"by pairs it would be {(low + high) / 2:.4f}, {low:.4f} to {high:.4f}, and open too" in prose
    p_value = f"{stats.f_oneway(*tests.values()).pvalue:.0e}".replace("-0", "-")
    assert f"analysis of variance: p = {p_value})" in prose
    tukey = stats.tukey_hsd(*tests.values())
    low, high = tukey.confidence_interval(0.95)
    fast, random, constant = map(PROTOCOLS.index, ("cyclic:6", "random", "constant"))
    gaps = [ends["cyclic:6"] - ends[name] for name in ("constant", "random")]
    assert "P = 6 is {:.3f} above constant and {:.3f} above random".format(*gaps) in prose
    limits = low[fast, constant], high[fast, constant], low[fast, random], high[fast, random]
    assert "all ten pairs: {:.3f} to {:.3f} and {:.3f} to {:.3f})".format(*limits) in prose
    apart = {(PROTOCOLS[i], PROTOCOLS[j]) for i, j in combinations(range(5), 2) if tukey.pvalue[i, j] < 0.05}
    assert {(slow, fast) for slow in ("constant", "random") for fast in ("cyclic:6", "cyclic:18")} <= apart
    assert not {("constant", "random"), ("constant", "cyclic:30"), ("random", "cyclic:30")} & apart
    assert min(run.final("train_accuracy") for run in runs) > 0.9999
    first = [known_by_heart(run)[0] for run in runs]
    assert f"All {len(runs)} runs first know the training images by heart" in prose
    assert f"between epochs {min(first)} and {max(first)}" in prose
    falls = {run.run: deepest_fall(run) for run in runs}
    deep = [run for run in runs if falls[run.run][0] < 0.7]
    assert {str(run.config.protocol) for run in deep} == {"cyclic:6", "cyclic:18", "random"}
    assert [str(run.config.protocol) for run in deep].count("random") == 1
    assert len(deep) == 11
    assert f"to between {min(falls.values())[0]:.2f} and {max(falls[run.run][0] for run in deep):.2f}" in prose
    others = [falls[run.run][0] for run in runs if run not in deep]
    assert f"the other 14 only to {min(others):.2f} or less far" in prose
    for run in deep:
        assert run.curve("rate")[falls[run.run][1] - 1] > 0.96 * run.config.lr
    bar = min(run.final("test_accuracy") for run in deep)
    assert f"all end at {bar:.4f} or higher, which one of the other 14 reaches" in prose
    assert sum(run.final("test_accuracy") >= bar for run in runs if run not in deep) == 1
    cooler = [run for run in read_lines(ROOT / "results/vgg16.jsonl.gz") if run.config.batch_size == 128]
    assert [run.final("test_accuracy") >= bar for run in cooler].count(True) == 2
    assert f"none of which fell below {min(map(deepest_fall, cooler))[0]:.2f}" in prose
    depth = stats.spearmanr([falls[run.run][0] for run in deep], [run.final("test_accuracy") for run in deep])
    assert f"(rank correlation {depth.statistic:.2f})" in prose
    late = [run.curve("test_accuracy")[130:] for run in runs]
    assert f"varies by less than {max(max(one) - min(one) for one in late):.3f}." in prose


def test_the_words_on_vgg16_from_imagenet_are_those_of_the_records(prose):
    runs = vgg16_runs("imagenet")
    words = "constant ends at {:.4f}, random at {:.4f}, the cyclic protocols at {:.4f}, {:.4f} and {:.4f}"
    assert words.format(*map(fmean, by_protocol(runs).values())) in prose
    looks = [by_protocol(runs, quantity) for quantity in (FINAL_TEST, BEST_TEST, TAIL_TEST, MEAN_TEST)]
    spreads = [float(f"{stats.f_oneway(*look.values()).pvalue:.1g}") for look in looks]
    words = (
        "p = 0.11 for the final accuracy, {} for the best, {} for the mean of the last 20 epochs, {} for the mean over"
    )
    assert words.format(*spreads[1:]) in prose
    assert f"{stats.f_oneway(*looks[0].values()).pvalue:.2f}" == "0.11"
    assert max(looks[3], key=lambda name: fmean(looks[3][name])) == "cyclic:30"
    assert all(min(look, key=lambda name: fmean(look[name])) == "constant" for look in looks)
    start = min(min(run.curve("test_accuracy")) for run in runs)
    assert start > 0.73036
    assert f"already after one epoch all {len(runs)} of them, under five protocols, are at {start:.3f} or more" in prose
    first = [known_by_heart(run)[0] for run in runs]
    assert (
        f"by heart between epochs {min(first)} and {max(first)} and keep them, to {min(map(deepest_fall, runs))[0]:.3f}"
        in prose
    )
    assert f"five side by side, took {fmean(run.seconds for run in runs):.1f} s each" in prose


def test_the_cost_is_that_of_the_benchmark(prose):
    """The rows of the H200 in both tables, and the words between, from the record of ``benchmarks/engine.py``."""
    readme = (ROOT / "README.md").read_text()
    record = json.loads((ROOT / "benchmarks/results/engine_h200.json").read_text())
    rows = [row for row in record["rows"] if row["batch_size"] == 256]
    ratios = [f"{row['epoch_ratio']['median']:.2g}" if row["model"] != "mlp" else "" for row in rows]
    for row, ratio in zip(rows, ratios, strict=True):
        name = {"mlp": "perceptron, {} at once", "cnn": "CNN, {} side by side", "vgg16": "VGG16, {} side by side"}
        label, share = name[row["model"]].format(row["replicas"]), max(row["share_of_flops"], row["share_of_bytes"])
        seconds = f"{row['run_of_180_epochs_s']:{'.2f' if row['model'] == 'mlp' else '.1f'}}"
        faster = f"{row['step_ratio']['median']:{'.0f' if row['model'] == 'mlp' else '.1f'}} times"
        ratio = ratio or f"{row['epoch_ratio']['median']:.0f}"
        assert re.search(rf"\| {label} \| {seconds} \| [^|]* \| {share:.0%} \|".replace("%", " %"), prose)
        assert re.search(
            rf"\| {label} \| {faster}[^|]* \| {ratio} times \| {seconds} s \| {share:.0%} of".replace("%", " %"), readme
        )
    peaks = record["peaks"]
    assert (
        f"({peaks['flops'] / 1e12:.0f} TFLOP/s in bf16 here) or a large copy ({peaks['bytes'] / 1e12:.1f} TB/s)"
        in prose
    )
    assert f"an epoch takes {rows[0]['epoch_ratio']['median']:.0f}, {ratios[1]} and {ratios[2]} times as long" in prose
    builds = sorted(f"{row['build_s']:.0f}" for row in rows)
    assert f"compiling ({builds[0]} to {builds[-1]} s there" in prose
    assert f"Compiling a stack takes {builds[0]} to {builds[-1]} s" in readme
    assert f"side by side a replica takes {rows[2]['engine_step_ms']:.2f} ms" in prose


def test_the_words_on_the_thermometer_are_those_of_the_readings(prose):
    found = {"constant": [], "random": [], "update": []}
    for file in (ROOT / "results/calculations").glob("*.json"):
        content = json.loads(file.read_text())
        if (settings := content["settings"])["kind"] == "thermometer":
            name = "constant" if settings["law"] == "constant" else "update" * (settings["coupling"] == "update")
            found[name or "random"].append((settings["seed"], content["result"]["readings"]))
    runs = {name: [readings for _, readings in sorted(some, key=lambda pair: pair[0])] for name, some in found.items()}
    everything = [run for some in runs.values() for run in some]
    assert len(everything) == 9
    ratios = [
        fmean(fmean(row["kinetic_temperature"] / row["temperature"] for row in run[18:]) for run in some)
        for some in runs.values()
    ]
    assert f"the second is {min(ratios):.2f} to {max(ratios):.2f} of the first" in prose
    falls = {key: [run[0][key] / run[-1][key] for run in everything] for key in ("temperature", "kinetic_temperature")}
    noise, motion = ((min(some), max(some)) for some in falls.values())
    words = "T falls by a factor of {:.0f} to {:.0f} and the velocities' by {:.0f} to {:.0f}, by seed"
    assert words.format(*noise, *motion) in prose

    def heat(run, quarter):
        rows = run[45 * quarter : 45 * (quarter + 1)]
        return fmean(row["kinetic_temperature"] for row in rows)

    quarters = [[[heat(run, k) for run in runs[name]] for k in range(4)] for name in ("random", "constant", "update")]
    random, constant, update = quarters
    hotter = [fmean(hot) / fmean(cold) for hot, cold in zip(random, constant, strict=True)]
    assert "by {:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*hotter) in prose
    pairs = [x / y for hot, cold in zip(random, constant, strict=True) for x, y in zip(hot, cold, strict=True)]
    assert f"by seed from {min(pairs):.2f} to {max(pairs):.2f}" in prose
    own = Thermostat(5e-3, 256, 0.9, True, "uniform", "update").law_factor  # by which the thermometer itself multiplies
    steps = [fmean(x) / fmean(y) / own for x, y in zip(update, constant, strict=True)]
    assert 1.005 < min(steps) < max(steps) < 1.035
    first_third = fmean(row["equilibrium_ratio"] for run in runs["constant"] for row in run[5:60])
    assert f"is about {first_third:.0f} in the first third of the run" in prose
    assert f"and {fmean(run[-1]['equilibrium_ratio'] for run in runs['constant']):.0f} at its end" in prose
    assert f"still grow after {everything[0][-1]['step']:,}" in prose
    assert f"Reshuffling alone would make it {1 - 2 * 0.9 * 256 / (0.1 * (60_000 - 256)):.2f}" in prose


def test_the_words_on_roughness_are_those_of_the_records(prose):
    records = {record.run: record for record in read_lines(ROOT / "results/perceptron.jsonl.gz")}
    rough = {}
    for group in EXPERIMENTS["fair-control"].groups("paper"):
        runs = [records[config.run] for config in group.configs if config.run in records]
        if runs:
            absolute = fmean(map(ROUGHNESS.of, runs))
            rough[group.label] = absolute, absolute / fmean(map(TAIL_LOSS.of, runs))
    (random, equal_mean, equal_heat) = (rough[name] for name in ("random", "constant", "constant, T of random"))
    assert f"({random[0]:.1e} against {equal_mean[0]:.1e};".replace("e-0", "e-") in prose
    words = (
        f"({equal_heat[0]:.1e}, and in proportion to its smaller loss {equal_heat[1]:.4f}, against {equal_mean[1]:.4f}"
    )
    assert words.replace("e-0", "e-") in prose
    assert f"and {random[1]:.4f} for the random one" in prose
