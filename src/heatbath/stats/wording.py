"""The one place that words what was found: claims, comparisons, the best of several groups, races and gates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from html import escape

from heatbath.stats.intervals import Interval, ratio_in_words
from heatbath.stats.pair_test import PairTest
from heatbath.stats.samples import Sample
from heatbath.stats.verdicts import Evidence, Factor, SeedsNeeded, Verdict

Table = tuple[Sequence[str], Iterable[Sequence[str]]]  # headings and rows
_MANY = 1000  # seeds: where more are needed the difference is as large as the margin, and their number a guess
_LATEX = str.maketrans({c: f"\\{c}" for c in "_%&#${}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"})
_NO_TEST = {
    "one seed": ": one seed says nothing about the spread",
    "no spread": ": without a spread between seeds there is no test",
}
_RACES = {"decided": "", "seeds": "all planned seeds are trained; ", "budget": "the budget is spent; "}


class Shown:
    """What has a sentence and a table of texts, as terminals, notebooks and papers show it."""

    @property
    def sentence(self) -> str:
        """What was found, in words."""
        raise NotImplementedError

    def _table(self) -> Table:
        raise NotImplementedError

    def to_latex(self) -> str:
        """Return the table for LaTeX, with the rules of the package booktabs."""
        headings, rows = self._table()
        head, *lines = (" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in (headings, *rows))
        begin = rf"\begin{{tabular}}{{{'l' * len(headings)}}}"
        return "\n".join([begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"])

    def _repr_html_(self) -> str:
        headings, rows = self._table()
        head = "".join(f"<th>{escape(name)}</th>" for name in headings)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        return f"<p>{escape(self.sentence)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"

    def __str__(self) -> str:
        return self.sentence

    def __repr__(self) -> str:
        return f"<{type(self).__name__}: {self.sentence}>"


def evidence(found: Evidence) -> str:
    """Return our numbers, such as ``0.741 (n = 10) against 0.738 (n = 5), difference 0.0031 (95 %: ...)``."""
    if not found.part:
        return _numbers(found)
    chosen = f"the hardest of {found.parts} comparisons, " if found.parts > 1 and found.interval else ""
    return f"{chosen}{found.part}: {_numbers(found)}"


def _numbers(found: Evidence) -> str:
    n, m = found.sizes
    if found.interval is None:
        if found.obstacle == "broken":
            return f"no number in {found.broken} of {n + m} values: runs diverged, are missing or too short"
        if found.obstacle == "no order":
            return "orders can be judged by two or more finite values in each group, of means that differ"
        return f"nothing to compare yet: n = {n} against n = {m}"
    if found.measure in ("explained", "lead"):
        verb = "explains" if found.measure == "explained" else "leads in explaining by"
        return f"{verb} {found.interval} of the variance between {n} groups"
    first, second = (f"{mean:.{5 if found.measure == 'difference' else 4}g}" for mean in found.means)
    if found.paired:
        compared = f"{first} against {second} (n = {n} pairs)"
    else:
        compared = f"{first} (n = {n}) against {second}{f' (n = {m})' if m else ''}"
    return f"{compared}, {found.measure} {found.interval}{_NO_TEST.get(found.obstacle or '', '')}"


def needs(verdict: Verdict) -> str:
    """Return what would settle what is open, such as ``needs about 40 seeds``; empty where nobody can say."""
    return "" if verdict.seeds is None else f"needs {seeds(verdict.seeds)}"


def outcome(verdict: Verdict) -> str:
    """Return the outcome, such as ``undecided: needs about 40 seeds (27 to 81)``."""
    told = needs(verdict) if verdict.outcome == "undecided" else ""
    return f"{verdict.outcome}: {told}" if told else verdict.outcome


def numbers(verdict: Verdict) -> str:
    """Return our numbers with their interval, or why nothing can be said."""
    return verdict.told or evidence(verdict.evidence)


def detail(verdict: Verdict) -> str:
    """Return our numbers with the margin and the adjusted p-value, or why nothing can be said."""
    if verdict.told:
        return verdict.told
    if verdict.p_value is None:
        return f"{numbers(verdict)}."
    of_family = f" among {verdict.family} claims" if verdict.family > 1 else ""
    of_family += "" if verdict.planned else " added after looking"
    return f"{numbers(verdict)}; margin {verdict.margin:.4g}, p = {verdict.p_value:.2g}{of_family}."


def finding(verdict: Verdict, claim: str) -> str:
    """Return what was found of a claim, which is put shorter, such as ``It is confirmed that ...``."""
    start = "undecided whether" if verdict.outcome == "undecided" else f"{verdict.outcome} that"
    return f"It is {start} {claim}."


def counts(outcomes: Mapping[str, int], names: Iterable[str]) -> str:
    """Return how many there are of each outcome, such as ``3 better, 1 undecided``."""
    return ", ".join(f"{outcomes[name]} {name}" for name in names)


def seeds(needed: SeedsNeeded) -> str:
    """Return a number of seeds to two digits, with its range, such as ``about 40 seeds (31 to 76)``."""
    units = (10 ** max(0, len(str(number)) - 2) for number in needed)
    about, low, high = (-(-number // unit) * unit for number, unit in zip(needed, units, strict=True))
    if needed.about > _MANY:
        return f"over {_MANY} seeds"
    most = high if needed.high <= _MANY else f"over {_MANY}"
    return f"about {about} seeds{f' ({low} to {most})' if needed.low < needed.high else ''}"


def margin(value: float) -> str:
    """Return a margin such as ``0.002``, or ``5 %`` for a factor 1.05."""
    return f"{100.0 * (float(value) - 1.0):.4g} %" if isinstance(value, Factor) else f"{value:.4g}"


def promise(level: float) -> str:
    """Return what is promised of a family."""
    return f"the chance that any verdict is wrong is at most {100.0 * (1.0 - level):.3g} %"


def notes(told: Iterable[str]) -> str:
    """Return notes as sentences, each after a space."""
    return "".join(f" {note[:1].upper()}{note[1:]}." for note in told)


def question(test: PairTest) -> str:
    """Return what two groups are compared in."""
    return f"{test.metric.replace('_', ' ')}: {test.a.name} against {test.b.name}"


def sentence(test: PairTest) -> str:
    """Return the verdict on two groups with its numbers, what is open, and what to be careful about."""
    words = [f"Undecided: {_no_test(test)}" if test.above.obstacle else _decision(test)]
    if test.look is not None:
        look, plan = test.look, test.look.plan
        words.append(f"look {look.number} of {len(plan)}, at {look.seeds} of at most {plan[-1]} seeds")
    careful = [] if test.above.obstacle else _careful(test)
    told = [*test.notes, f"careful: {', '.join(careful)}"] if careful else test.notes
    return f"{'; '.join(words)}.{notes(told)}"


def family(tests: Sequence[PairTest], level: float) -> str:
    """Return what several comparisons have decided."""
    outcomes = Counter[str](test.verdict for test in tests)
    decided = counts(outcomes, (name for name in ("better", "worse", "equal", "undecided") if outcomes[name]))
    return f"{len(tests)} comparison{'s' * (len(tests) != 1)}: {decided}; {promise(level)}."


def table(tests: Iterable[PairTest]) -> Table:
    """Return headings and a row for each comparison."""
    return ("comparison", "metric", "verdict", "difference", "p", "seeds"), map(_cells, tests)


def best(few: Sequence[str], near: Sequence[str], groups: int, level: float, within: float | None) -> str:
    """Return which of several groups may be the best, and which are certainly near it."""
    wrong = f"(wrong with a chance of at most {100.0 * (1.0 - level):.3g} %)"
    if len(few) == 1:
        return f"{few[0]} is the best of {groups} {wrong}."
    close = f" Within {margin(within)} of the best: {', '.join(near)}." if near and within else ""
    return f"The best of {groups} is one of {', '.join(few)} {wrong}.{close}"


def race(first: Sequence[str], lost: Sequence[str], arms: int, equal: bool, ended: str, runs: int, planned: int) -> str:
    """Return which arms won a race, whether they are known to be equal, which lost all runs, why it ended, its cost."""
    names, cost = " and ".join(first), f"{runs} runs{f' instead of {planned}' if runs < planned else ''}"
    many = f"{names} are equal and the best of" if equal else f"Undecided between {names}, of"
    won = f"{names} is the best of" if len(first) == 1 else many if first else "There is no best of"
    told = f" All runs of {' and '.join(lost)} diverged." if lost else ""
    return f"{won} {arms} ({_RACES[ended]}{cost}).{told}"


def gate(answer: str, verdict: Verdict, baseline: str, metric: str, allowed: float) -> str:
    """Return whether a new group is worse than another one, and by which numbers."""
    against = f"against {baseline} in {metric or 'values'}, margin {margin(allowed)}"
    return f"{answer.capitalize()}: {'; '.join(filter(None, (numbers(verdict), against, needs(verdict))))}."


def _decision(test: PairTest) -> str:
    ahead, by = _lead(test)
    if test.verdict == "equal" and test.margin is not None:
        within = f"{test.a.name} and {test.b.name} are equal within {margin(test.margin)}"
        return f"{within}: {ahead} is ahead by {by}, {_sizes(test)}"
    verb = "Undecided: {} is ahead by {}, {}" if test.verdict == "undecided" else "{} is better by {}, {}"
    words = [verb.format(ahead, by, _sizes(test))]
    if test.margin is not None:
        bound = margin(test.margin)
        beyond = f"the difference is larger than {bound}"
        words.append(beyond if test.is_beyond else f"whether they are equal within {bound} is undecided")
    if test.seeds_needed is not None:
        words.append(f"{seeds(test.seeds_needed)} would decide it with power {test.power:g}")
    elif test.is_open:
        reason = "the means are equal" if test.margin is None else "the difference is as large as the margin"
        words.append(f"no number of seeds would decide it if {reason}, as it seems")
    return "; ".join(words)


def _lead(test: PairTest) -> tuple[str, str]:
    """The group that is ahead, and by how much, as a number that is positive where it is."""
    found, even = test.interval, 1.0 if test.is_relative else 0.0
    a_is_ahead = found.estimate == even or (found.estimate < even) == test.lower_is_better
    name = (test.a if a_is_ahead else test.b).name
    if test.is_relative:
        inverse = Interval(1.0 / found.estimate, 1.0 / found.high, 1.0 / max(found.low, 1e-300), found.level)
        return name, f"a factor {ratio_in_words(found if found.estimate >= 1.0 else inverse)}"
    negative = Interval(-found.estimate, -found.high, -found.low, found.level)
    return name, str(found if found.estimate >= 0.0 else negative)


def _sizes(test: PairTest) -> str:
    n, m = len(test.a.values), len(test.b.values)
    if test.paired:
        return f"{n} seeds, paired"
    return f"{n} seeds each, unpaired" if n == m else f"{n} and {m} seeds, unpaired"


def _no_test(test: PairTest) -> str:
    """Why there is no test."""
    if test.above.obstacle != "broken":
        return evidence(test.above)
    broken = [s for s in (test.a, test.b) if s.broken]
    groups = list(map(lacks_numbers, broken))
    if not groups:
        return "a relative margin needs positive values"
    if any(len(s.broken) == len(s.values) for s in broken):  # which counts as nothing, whatever is done with the others
        return f"{' and '.join(groups)} (diverged or missing)"
    advice = "diverged='exclude' leaves such runs out, diverged='worst' counts them as the worst"
    return f"{' and '.join(groups)} (diverged or missing); {advice}"


def lacks_numbers(sample: Sample) -> str:
    """Return where a group has no numbers."""
    names = sample.broken
    if sample.seeds is None:
        return f"{sample.name} has no number in {len(names)} of {len(sample.values)} values"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"{sample.name} has no number for seed{'s' * (len(names) > 1)} {', '.join(names[:5])}{more}"


def _careful(test: PairTest) -> list[str]:
    check = test.check
    words = ["fewer than five seeds say little about the spread"] if check.few else []
    for sample, places in zip((test.a, test.b), check.outliers, strict=True):
        if places:
            names = [str(sample.seeds[k] if sample.seeds is not None else k) for k in places[:3]]
            of = f"the difference of {test.a.name} and {test.b.name}" if test.paired else sample.name
            what = "value" if sample.seeds is None else "seed"
            words.append(f"{of} has an outlier ({what} {', '.join(names)})")
    if check.skewness:
        words.append("the differences are skewed" if test.paired else "the groups are skewed unequally")
    if check.p is not None:
        agrees = (check.p <= test.error) == (test.verdict != "undecided")
        words.append(f"a permutation test {'agrees' if agrees else 'does not agree'} (p = {check.p:.2g})")
    return words


def _cells(test: PairTest) -> tuple[str, ...]:
    words = ratio_in_words(test.interval) if test.is_relative else str(test.interval)
    difference = words if test.above.interval else "-"
    names = f"{test.a.name} against {test.b.name}"
    return names, test.metric, test.verdict, difference, f"{test.p:.2g}", _sizes(test)
