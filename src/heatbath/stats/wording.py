"""The one place that words a comparison: its sentence, and its rows in HTML and LaTeX."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from html import escape

from heatbath.stats.evidence import seeds_in_words
from heatbath.stats.intervals import Interval, ratio_in_words
from heatbath.stats.pair_test import PairTest
from heatbath.stats.samples import Sample
from heatbath.stats.verdicts import Factor

_HEADINGS = ("comparison", "metric", "verdict", "difference", "p", "seeds")
_LATEX = str.maketrans({c: f"\\{c}" for c in "_%&#${}"} | {"\\": r"\textbackslash{}", "~": r"\~{}", "^": r"\^{}"})


def sentence(test: PairTest) -> str:
    """Return the verdict with its numbers, what is open, and what to be careful about, in words."""
    words = [f"Undecided: {_no_test(test)}" if test.above.obstacle else _decision(test)]
    if test.look is not None:
        look, plan = test.look, test.look.plan
        words.append(f"look {look.number} of {len(plan)}, at {look.seeds} of at most {plan[-1]} seeds")
    careful = [] if test.above.obstacle else _careful(test)
    notes = [*test.notes, *(f"careful: {', '.join(careful)}" for _ in careful[:1])]
    return f"{'; '.join(words)}.{''.join(f' {_capital(note)}.' for note in notes)}"


def family(tests: Sequence[PairTest], level: float) -> str:
    """Return what several comparisons have decided, in words."""
    counts = Counter(test.verdict for test in tests)
    decided = [f"{counts[word]} {word}" for word in ("better", "worse", "equal", "undecided") if counts[word]]
    promise = f"the chance that any verdict is wrong is at most {100.0 * (1.0 - level):.3g} %"
    return f"{len(tests)} comparison{'s' * (len(tests) != 1)}: {', '.join(decided)}; {promise}."


def html(summary: str, tests: Sequence[PairTest]) -> str:
    """Return a paragraph and a table."""
    return table_html(summary, _HEADINGS, [_cells(test) for test in tests])


def table_html(summary: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a paragraph and a table of texts."""
    head = "".join(f"<th>{escape(name)}</th>" for name in headings)
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
    return f"<p>{escape(summary)}</p><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def latex(tests: Sequence[PairTest]) -> str:
    """Return a table with the rules of booktabs."""
    return table_latex(_HEADINGS, [_cells(test) for test in tests])


def table_latex(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table of texts with the rules of booktabs."""
    head, *lines = (" & ".join(cell.translate(_LATEX) for cell in row) + r" \\" for row in (headings, *rows))
    begin = rf"\begin{{tabular}}{{{'l' * len(headings)}}}"
    return "\n".join([begin, r"\toprule", head, r"\midrule", *lines, r"\bottomrule", r"\end{tabular}"])


def margin_in_words(margin: float) -> str:
    """Return a margin such as ``0.002``, or ``5 %`` for a factor 1.05."""
    return f"{100.0 * (float(margin) - 1.0):.4g} %" if isinstance(margin, Factor) else f"{margin:.4g}"


def _decision(test: PairTest) -> str:
    ahead, by = _lead(test)
    sizes = _sizes(test)
    if test.verdict == "equal" and test.margin is not None:
        within = f"{test.a.name} and {test.b.name} are equal within {margin_in_words(test.margin)}"
        return f"{within}: {ahead} is ahead by {by}, {sizes}"
    verb = "Undecided: {} is ahead by {}, {}" if test.verdict == "undecided" else "{} is better by {}, {}"
    words = [verb.format(ahead, by, sizes)]
    if test.is_beyond and test.margin is not None:
        words.append(f"the difference is larger than {margin_in_words(test.margin)}")
    elif test.margin is not None:
        words.append(f"equal within {margin_in_words(test.margin)} is not decided")
    if test.seeds_needed is not None:
        words.append(f"{seeds_in_words(*test.seeds_needed)} would decide it with power {test.power:g}")
    return "; ".join(words)


def _lead(test: PairTest) -> tuple[str, str]:
    """The group that is ahead, and by how much, as a number that is positive where it is."""
    found, even = test.interval, 1.0 if test.is_relative else 0.0
    a_is_ahead = (found.estimate < even) == test.lower_is_better if found.estimate != even else True
    if test.is_relative:
        inverse = Interval(1.0 / found.estimate, 1.0 / found.high, 1.0 / max(found.low, 1e-300), found.level)
        words = ratio_in_words(found if found.estimate >= 1.0 else inverse)
        return (test.a if a_is_ahead else test.b).name, f"a factor {words}"
    negative = Interval(-found.estimate, -found.high, -found.low, found.level)
    return (test.a if a_is_ahead else test.b).name, str(found if found.estimate >= 0.0 else negative)


def _sizes(test: PairTest) -> str:
    n, m = len(test.a.values), len(test.b.values)
    if test.paired:
        return f"{n} seeds, paired"
    return f"{n} seeds each, unpaired" if n == m else f"{n} and {m} seeds, unpaired"


def _no_test(test: PairTest) -> str:
    """Why there is no test."""
    if test.above.obstacle != "broken":
        return str(test.above)
    groups = [f"{s.name} has no number {_where(s)}" for s in (test.a, test.b) if s.broken]
    if not groups:
        return "a relative margin needs positive values"
    advice = "diverged='exclude' leaves such runs out, diverged='worst' counts them as the worst"
    return f"{' and '.join(groups)} (diverged or missing); {advice}"


def _where(sample: Sample) -> str:
    names = sample.broken
    if sample.seeds is None:
        return f"in {len(names)} of {len(sample.values)} values"
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return f"for seed{'s' * (len(names) > 1)} {', '.join(names[:5])}{more}"


def _careful(test: PairTest) -> list[str]:
    check = test.check
    words = []
    if check.few:
        words.append("fewer than five seeds hardly tell the spread")
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


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
