"""The committed records rebuild every figure and verdict, and the documents say what they say."""

import json
import re
from itertools import combinations
from statistics import fmean

import numpy as np
import pytest
from committed_records import PROSE, ROOT, late_gain, records, runs_of
from scipy import stats

from heatbath import cli
from heatbath.paper import EXPERIMENTS, claims
from heatbath.paper.groups import FigureRuns as Found
from heatbath.paper.quantities import BEST_TEST, FINAL_TEST, MEAN_TEST, ROUGHNESS, TAIL_LOSS
from heatbath.tasks.registry import Margin, networks
from heatbath.thermostat import Thermostat


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
    counts = [table.count(f"**{outcome}**") for outcome in ("confirmed", "contradicted", "undecided")]
    assert f"Of {sum(counts)} claims {counts[0]} are confirmed, {counts[1]} contradicted and {counts[2]} open." in PROSE


def test_the_table_of_the_readme_agrees(rebuilt):
    """The numbers of each row are those of its experiment's verdicts, to the digits that it gives."""
    verdicts = (rebuilt / "verdicts.md").read_text().splitlines()
    table = (ROOT / "README.md").read_text().partition("| claim, at the paper")[2].partition("\n\n")[0]
    experiments = ["figure1", "figure2", "figure3", "figure5", "figure6", "figure6", "figure5", "collapse"]
    experiments += ["fair-control", "temperature", "temperature", "figure4", "delta"]
    for row, experiment in zip(table.splitlines()[2:], experiments, strict=True):
        claim, verdict, found = row.strip("| ").split(" | ")
        details = "\n".join(line for line in verdicts if line.startswith(f"| {experiment} |"))
        numbers = re.findall(r"(?<![\d.])-?\d+\.\d{3,}", claim + found)
        assert all(re.search(rf"(?<![\d.]){number}", details) for number in numbers)
        assert {word for word in ("confirmed", "contradicted", "undecided") if word in verdict} <= set(
            re.findall(r"\*\*(\w+)\*\*", details)
        )
        assert numbers or experiment == "temperature"
        if "figure" in claim:
            assert experiment.replace("figure", "figure ") in claim


def test_the_documents_count_the_runs():
    models = [record.config.model for record in records().values()]
    for file in ("README.md", "CHANGELOG.md"):
        assert f"records of {len(models):,} runs at the paper's scale" in " ".join((ROOT / file).read_text().split())
    table = (ROOT / "results/README.md").read_text()
    for model, name in (("mlp", "perceptrons"), ("cnn", "CNNs"), ("vgg16", "VGG16")):
        assert f"| {models.count(model):,} {name} on " in table


@pytest.mark.parametrize("figure", ["figure1", "figure2"])
def test_the_words_on_the_way_gone_are_those_of_the_records(figure):
    over_epochs, over_way, gone = [], [], {}
    parts = [45, *range(18, 181)]  # of the way, in epochs of a constant rate
    for label, runs in runs_of(figure).items():
        ways = [np.cumsum(run.curve("rate")) / run.config.lr for run in runs]
        losses = [np.log(run.curve("train_loss")) for run in runs]
        over_epochs.append([np.mean([loss[k - 1] for loss in losses]) for k in (10, 45, 180)])
        over_way.append(np.mean([np.interp(parts, way, loss) for way, loss in zip(ways, losses, strict=True)], axis=0))
        gone[label] = np.mean([way[-20:].mean() / 180 for way in ways])
    early, later, last = np.exp(np.ptp(over_epochs, axis=0))
    quarter, *others = np.exp(np.ptp(over_way, axis=0))
    if figure == "figure1":
        assert f"up to a factor of {early:.2f} apart, after 45 epochs {later:.2f}" in PROSE
        pair = [row[2] for row, label in zip(over_epochs, gone, strict=True) if label in ("cyclic:6", "cyclic:30")]
        words = f"these two are {100 * np.ptp(pair):.1f} % apart and no pair more than {100 * (last - 1):.1f} %"
        assert words in PROSE
        assert f"{quarter:.2f} apart at a quarter of it, at most {max(others):.3f} after the first tenth" in PROSE
    else:
        words = f"factors of {early:.2f} and {later:.2f} after 10 and 45 epochs, {quarter:.3f} at a quarter of the way"
        assert f"{words} and at most {max(others):.3f} after the first tenth" in PROSE
        words = (
            f"the first has gone {gone['cyclic:6']:.3f} of the way on average and the second {gone['cyclic:30']:.3f}"
        )
        assert words in PROSE


def test_the_words_on_the_choice_of_the_test_are_those_of_the_records(monkeypatch):
    """By Welch's test, the one planned first: what the verdicts that depend on the choice would be."""
    compared = ("figure1", "figure2", "figure3", "figure4", "figure5", "figure6", "coupling", "laws", "delta", "period")

    def verdicts():
        figures = {name: EXPERIMENTS[name].figure(records(), "paper") for name in (*compared, "fair-control")}
        return {(name, verdict.claim): verdict for name, figure in figures.items() for verdict in figure.verdicts}

    planned = verdicts()
    monkeypatch.setattr(claims, "PAIRED_FROM", 10**9)
    by_welch = verdicts()
    changed = [key for key in planned if planned[key].outcome != by_welch[key].outcome]
    way, error, final, best, shaken = (re.search(r"p = (\S+) among", by_welch[key].detail)[1] for key in changed)
    assert [name for name, _ in changed] == ["figure2", "figure2", "figure4", "figure4", "coupling"]
    assert [by_welch[key].outcome for key in changed] == [*["undecided"] * 2, *["contradicted"] * 2, "undecided"]
    assert "Five verdicts depend on the rule. By Welch's test three would be undecided" in PROSE
    assert f"that random reaches the final (p = {final}) and the best (p = {best}) test accuracy" in PROSE
    assert f"by the rule, {final} by Welch's test)" in PROSE
    assert (
        f"the same training loss on parts of the way (p = {way}) and the same generalisation error (p = {error})"
        in PROSE
    )
    assert f"more than one on the step (p = {shaken})" in PROSE


def test_the_words_on_the_first_margins_are_those_of_the_records(monkeypatch):
    def outcomes():
        figures = {name: EXPERIMENTS[name].figure(records(), "paper") for name in ("figure2", "figure3", "figure6")}
        return {(name, verdict.claim): verdict.outcome for name, one in figures.items() for verdict in one.verdicts}

    now = outcomes()
    monkeypatch.setitem(networks()["cnn"].margins, "mnist", Margin(0.002, ""))
    first = outcomes()
    assert {first[key] for key in now if first[key] != now[key]} == {"confirmed"}
    changed = [
        (name, claim.split()[0], claim.split()[-2]) for name, claim in now if first[name, claim] != now[name, claim]
    ]
    assert changed == [("figure2", "All", "train"), ("figure2", "All", "test"), ("figure6", "CNN:", "test")]
    losses = [fmean(map(TAIL_LOSS.of, runs)) for runs in runs_of("fair-control", "perceptron").values()]
    assert "With the first margins figure 2's accuracies and the CNN's end in figure 6 would be confirmed" in PROSE
    assert f"fair control would count as different: they are {min(losses):.4f} to {max(losses):.4f}." in PROSE


def test_the_seeds_run_since_the_first_look_give_the_same_verdicts():
    p_values = []
    for name, looked_at in (("figure2", 3), ("figure3", 5)):
        since = {run: record for run, record in records().items() if record.config.seed >= looked_at}
        whole, late = (EXPERIMENTS[name].figure(some, "paper").verdicts for some in (records(), since))
        compared = [(one, two) for one, two in zip(whole, late, strict=True) if "perceptron" not in one.claim]
        assert all(one.outcome == two.outcome for one, two in compared)
        p_values += [late.p_value for _, late in compared if late.outcome == "confirmed"]
    assert len(p_values) == 4
    assert f"(figure 2's last seven, figure 3's last five; p at most {max(p_values):.3f})" in PROSE


def test_the_words_on_the_last_epoch_of_figure_2_are_those_of_the_records():
    runs = runs_of("figure2")
    ends = {label: [run.final("test_accuracy") for run in some] for label, some in runs.items()}
    low, high = stats.ttest_rel(ends["cyclic:6"], ends["cyclic:30"]).confidence_interval(0.95)
    words = f"{abs(low + high) / 2:.5f} apart on the test images (95 %: {low:.5f} to {high:.5f})"
    assert f"these two are {words}, and no pair more than 0.0005;" in PROSE
    assert np.ptp([fmean(some) for some in ends.values()]) < 0.0005
    found = Found("paper", EXPERIMENTS["figure2"].groups("paper"), records())
    last = claims.all_equal(found, "", found.groups, FINAL_TEST, 0.001).weigh(0.05 / 5)
    assert f"judged by that epoch alone the claim would be open as well (p = {5 * last.p_if_false:.2g})" in PROSE
    verdicts = {verdict.claim: verdict for verdict in EXPERIMENTS["figure2"].figure(records(), "paper").verdicts}
    for kind, words in (("test", "{} apart on the test images ({})"), ("train", "{} ({}) on the training images")):
        detail = verdicts[f"All five protocols reach the same {kind} accuracy"].detail
        found = re.search(r"cyclic:6 against cyclic:30: .*difference (\S+) \((98 %: .*?)\)", detail)
        assert words.format(found[1], found[2] if kind == "test" else found[2][6:]) in PROSE
    losses = {label: np.mean([np.log(run.final("train_loss")) for run in some]) for label, some in runs.items()}
    above = [np.exp(loss - losses["constant"]) for label, loss in losses.items() if label != "constant"]
    assert "the last loss of constant is 2 to 3 % below that of the others" in PROSE
    assert 1.02 < min(above) < max(above) < 1.03


def test_the_words_on_the_cnn_of_figure_3_are_those_of_the_records():
    runs = runs_of("figure3", "CNN")
    best = {label: [BEST_TEST.of(run) for run in some] for label, some in runs.items()}
    words = (
        "{:.4f} for constant, {:.4f} for random and {:.4f}, {:.4f} and {:.4f} for the cyclic protocols (P = 6, 18, 30)"
    )
    assert words.format(*map(fmean, best.values())) in PROSE
    cyclic = [label for label in runs if label.startswith("cyclic")]
    gains = [stats.ttest_rel(best[label], best["constant"]) for label in cyclic]
    low, high = gains[0].confidence_interval(1 - 0.05 / 10)
    assert f"{(low + high) / 2:.4f} (by pairs, 99.5 % for the choice among ten: {low:.4f} to {high:.4f})" in PROSE
    p_values = [f"{10 * gain.pvalue:.2g}" for gain in gains]
    assert "(p = {:.1}, {:.2} and {:.1}, corrected)".format(*map(float, p_values)) in PROSE
    slow, fast = ([late_gain(runs, label, at) for label in cyclic] for at in ("low", "high"))
    assert f"they are {min(slow):.4f} to {max(slow):.4f} above constant where it is below l/4" in PROSE
    assert f"and {min(fast):.4f} to {max(fast):.4f} where it is above 1.75 l" in PROSE
    last = stats.f_oneway(*([run.final("test_accuracy") for run in some] for some in runs.values())).pvalue
    assert f"in the last epoch no difference is seen (analysis of variance: p = {last:.2f})" in PROSE


def test_the_words_on_runs_of_one_temperature_are_those_of_the_records():
    found = [
        (runs[0].config.thermostat.temperature(), [run.final("test_accuracy") for run in runs])
        for runs in runs_of("collapse").values()
    ]
    pairs = [(x, y) for (one, x), (two, y) in combinations(found, 2) if max(one, two) < 1.02 * min(one, two)]
    widest = max(abs(fmean(one) - fmean(two)) for one, two in pairs)
    least = min(stats.ttest_rel(one, two).pvalue for one, two in pairs)
    assert f"The {len(pairs)} pairs of groups whose temperatures agree to 2 % differ by at most {widest:.5f}" in PROSE
    assert f"none by more than its noise (p at least {least:.2g}, not corrected)" in PROSE
    temperatures, means = np.array([(temperature, fmean(ends)) for temperature, ends in found]).T
    squares = (means - means.mean()) ** 2
    assert sum(squares[temperatures < np.median(temperatures)]) > 0.75 * sum(squares)
    assert "The colder half of the runs makes most of the variance" in PROSE


def test_the_range_of_the_collapse_is_that_of_the_report(rebuilt):
    page = re.sub(r"<[^>]*>", "", (rebuilt / "report.html").read_text())
    middle, ends = re.search(r"Below T = (\S+) it is [^,]*, above \S+ \(95 %: (\S+ to \S+)\)", page).groups()
    words = f"above T = {float(middle):.1e}: 95 %, {ends})".replace("e-0", "e-")
    assert f"(rank correlation of the final accuracy {words}" in PROSE


def test_the_families_are_counted(rebuilt):
    table = [row.split("|") for row in (rebuilt / "verdicts.md").read_text().splitlines()[2:] if row]
    assert f"The table has {len({row[1] for row in table})} families" in PROSE
    shaken = [row[4] for row in table if "shakes" in row[2] and ("no draw" in row[2] or "Delta = 0" in row[2])]
    assert len(shaken) == 2
    assert shaken[0] == shaken[1]
    assert "are one comparison (the loss that the draw shakes, in coupling and Delta)" in PROSE


def test_what_chance_explains_is_that_of_the_report(rebuilt):
    told = re.findall(
        r"(\w+) explains [^.]*(?:\.\d+[^.]*)*, where chance would (\d\.\d\d)\.", (rebuilt / "report.html").read_text()
    )
    chances = {name: float(chance) for name, chance in told}
    knobs = [chance for name, chance in chances.items() if name != "T"]
    assert len(knobs) == 3
    assert f"values, would explain {chances['T']:.2f}, and a knob {min(knobs):.2f} to {max(knobs):.2f};" in PROSE


def test_the_words_on_the_thermometer_are_those_of_the_readings():
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
    assert f"the second is {min(ratios):.2f} to {max(ratios):.2f} of the first" in PROSE
    falls = {key: [run[0][key] / run[-1][key] for run in everything] for key in ("temperature", "kinetic_temperature")}
    noise, motion = ((min(some), max(some)) for some in falls.values())
    words = "T falls by a factor of {:.0f} to {:.0f} and the velocities' by {:.0f} to {:.0f}, by seed"
    assert words.format(*noise, *motion) in PROSE

    def heat(run, quarter):
        rows = run[45 * quarter : 45 * (quarter + 1)]
        return fmean(row["kinetic_temperature"] for row in rows)

    quarters = [[[heat(run, k) for run in runs[name]] for k in range(4)] for name in ("random", "constant", "update")]
    random, constant, update = quarters
    hotter = [fmean(hot) / fmean(cold) for hot, cold in zip(random, constant, strict=True)]
    assert "by {:.2f}, {:.2f}, {:.2f} and {:.2f}".format(*hotter) in PROSE
    pairs = [x / y for hot, cold in zip(random, constant, strict=True) for x, y in zip(hot, cold, strict=True)]
    assert f"by seed from {min(pairs):.2f} to {max(pairs):.2f}" in PROSE
    own = Thermostat(5e-3, 256, 0.9, True, "uniform", "update").law_factor  # by which the thermometer itself multiplies
    steps = [fmean(x) / fmean(y) / own for x, y in zip(update, constant, strict=True)]
    assert 1.005 < min(steps) < max(steps) < 1.035
    first_third = fmean(row["equilibrium_ratio"] for run in runs["constant"] for row in run[5:60])
    assert f"is about {first_third:.0f} in the first third of the run" in PROSE
    assert f"and {fmean(run[-1]['equilibrium_ratio'] for run in runs['constant']):.0f} at its end" in PROSE
    assert f"still grow after {everything[0][-1]['step']:,}" in PROSE
    assert f"Reshuffling alone would make it {1 - 2 * 0.9 * 256 / (0.1 * (60_000 - 256)):.2f}" in PROSE


def test_the_words_on_the_fair_control_of_the_perceptron_are_those_of_the_records():
    rough = {}
    for label, runs in runs_of("fair-control", "perceptron").items():
        absolute = fmean(map(ROUGHNESS.of, runs))
        rough[label] = absolute, absolute / fmean(map(TAIL_LOSS.of, runs))
    at_equal_heat, at_equal_mean = (
        verdict.interval
        for verdict in EXPERIMENTS["fair-control"].figure(records(), "paper").verdicts
        if verdict.claim.startswith("perceptron") and "loss" in verdict.claim and "update" not in verdict.claim
    )
    words = f"({at_equal_heat.level:.2%}: {at_equal_heat.low:.2f} to {at_equal_heat.high:.2f})".replace("%", " %")
    assert f"a training loss {at_equal_heat.estimate:.2f} times smaller {words}" in PROSE
    words = f"(ratio {at_equal_mean.estimate:.3f}, {at_equal_mean.low:.3f} to {at_equal_mean.high:.3f})"
    assert words in PROSE
    groups = runs_of("fair-control", "perceptron")
    hotter, at_random = ([MEAN_TEST.of(run) for run in groups[name]] for name in ("constant, T of random", "random"))
    low, high = stats.ttest_rel(hotter, at_random).confidence_interval(0.95)
    assert f"(by {(low + high) / 2:.4f} in the mean over all epochs; 95 %: {low:.4f} to {high:.4f})" in PROSE
    (random, equal_mean, equal_heat) = (rough[name] for name in ("random", "constant", "constant, T of random"))
    assert f"({random[0]:.1e} against {equal_mean[0]:.1e};".replace("e-0", "e-") in PROSE
    words = (
        f"({equal_heat[0]:.1e}, and in proportion to its smaller loss {equal_heat[1]:.4f}, against {equal_mean[1]:.4f}"
    )
    assert words.replace("e-0", "e-") in PROSE
    assert f"and {random[1]:.4f} for the random one" in PROSE
