import json
import re

import pytest

from heatbath import paper
from heatbath.cli import screens, verdicts
from heatbath.engine import planning, run
from heatbath.engine.executors.local import Local
from heatbath.engine.progress import Interrupted
from heatbath.paper import reproduction
from heatbath.report import page
from heatbath.runs.export import write_lines
from heatbath.runs.sources import read_records
from heatbath.runs.store import Store
from heatbath.stats.verdicts import Claim, judge
from heatbath.system import machine
from measured import signed_line

SMOKE = ("reproduce", "coupling", "--scale", "smoke", "--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A store with the runs of one small figure."""
    folder = tmp_path_factory.mktemp("trained") / "runs"
    run.run(paper.EXPERIMENTS["coupling"].configs("smoke"), folder, "cpu", checkpoint_seconds=60.0)
    return folder


def test_train_draw_and_judge(heatbath, tmp_path, monkeypatch):
    status, out, _ = heatbath(*SMOKE, "--seeds", 1)
    assert status == 0
    assert re.search(r"^coupling: undecided.*\nBoth couplings reach the same test accuracy", out, re.MULTILINE)
    assert out.endswith("\nThe report, at the scale smoke: out/report.html\n")
    assert (tmp_path / "out" / "report.html").is_file()
    monkeypatch.setattr(run, "complete", lambda *_, **__: pytest.fail("trained again"))
    assert heatbath(*SMOKE, "--seeds", 1)[1] == out
    assert "Not complete: coupling" in heatbath(*SMOKE, "--draw-only")[1]


def test_verdicts_as_json(heatbath, trained):
    for command in (
        ("reproduce", "coupling", "--scale", "smoke", "--draw-only", "--store"),
        ("report", "--out", "page"),
    ):
        status, out, err = heatbath(*command, str(trained), "--json")
        assert (status, err) == (0, "")
        found = json.loads(out)
        assert found["scale"] == "smoke"
        ours = [verdict for verdict in found["verdicts"] if verdict["figure"] == "coupling"]
        assert len(ours) == 4
        assert sum(found["counts"].values()) == len(found["verdicts"])
        assert {verdict["outcome"] for verdict in ours} <= {"confirmed", "contradicted", "undecided"}
        assert all(verdict["interval"][0] < verdict["interval"][1] for verdict in ours)
    study = json.loads(heatbath("report", str(trained), "--by", "protocol", "--by", "coupling", "--json")[1])
    assert len(study["verdicts"]) == 3


def test_list(heatbath, tmp_path):
    status, out, err = heatbath("reproduce", "--list")
    assert (status, err) == (0, "")
    lines = [line.split(maxsplit=1) for line in out.splitlines()[2:]]
    assert [name for name, _ in lines][:6] == [f"figure{k}" for k in range(1, 7)]
    assert all(len(line) == 2 for line in lines)
    names = [one["figure"] for one in json.loads(heatbath("reproduce", "--list", "--json")[1])]
    assert names == [name for name, _ in lines]
    assert not list(tmp_path.iterdir())


def test_an_interrupt_tells_how_to_go_on(heatbath, monkeypatch):
    def stop(*_arguments, **_options):
        raise Interrupted(1, 6)

    monkeypatch.setattr(run, "complete", stop)
    status, out, err = heatbath(*SMOKE)
    assert (status, out) == (130, "")
    assert err == "heatbath: interrupted; 1 of 6 runs are done: run the same command again to go on\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["figur1"], "did you mean figure1?"),
        (["--scale", "huge"], "unknown scale 'huge': choose one of smoke, laptop, paper"),
        (["figure6"], "figure6: too much for the scale laptop"),
        (["--seeds", 0], "--seeds"),
        (["--device", "gpu"], "device must be"),
        (["--device", "cuda:99"], "device cuda:99: torch sees"),
        (["--data-dir", "nowhere"], "--data-dir nowhere is not a folder"),
        (["--out", "file"], "--out file"),
        (["--store", "file"], "--store file"),
        (["--store", "foreign"], "is not a store of heatbath"),
        (["--draw-only"], "there is no store in runs"),
        (["--draw-only", "--store", "."], "there is no store in .; name one with --store"),
    ],
)
def test_reproduce_refuses(refused, tmp_path, arguments, words):
    _clutter(tmp_path)
    assert words in refused("reproduce", *arguments)


@pytest.fixture
def exported(trained, tmp_path):
    """The same runs in a folder of files, some of them twice."""
    (tmp_path / "exports").mkdir()
    with Store(trained, read_only=True) as store:
        some = [record.run for record in store.records()][:3]
        write_lines(store.records(), tmp_path / "exports" / "all.jsonl.gz")
        write_lines(store.records(some), tmp_path / "exports" / "some.jsonl")
    return tmp_path / "exports"


def test_records_come_from_stores_files_and_folders(trained, exported):
    (exported / "notes.txt").write_text("not a record")
    expected = {record.run: record.curve("rate") for record in read_records(trained).records}
    assert len(expected) == 6
    for source in (exported, exported / "all.jsonl.gz"):
        found = read_records(source).records
        assert {record.run for record in found} == set(expected)
        assert {record.status for record in found} == {"finished"}
    assert len(read_records(exported / "some.jsonl").records) == 3


def test_exported_files_are_no_store(refused, exported):
    (exported / "calculations").mkdir()
    words = "there is no store in exports; its files of 'runs export' are drawn by 'heatbath report exports'"
    assert refused("reproduce", "--draw-only", "--store", "exports") == f"heatbath: {words}\n"
    told = refused("reproduce", "theory", "--scale", "smoke", "--store", "exports")
    words += "; to train what they lack, 'heatbath runs merge exports --create --store NEW' first"
    assert told == f"heatbath: {words}\n"


def test_calculations_alone_are_drawn(heatbath, tmp_path):
    (tmp_path / "runs" / "calculations").mkdir(parents=True)
    status, out, _ = heatbath("reproduce", "theory", "--scale", "smoke", "--draw-only")
    assert status == 0
    assert "Not complete: theory" in out


def test_report_needs_no_training(heatbath, tmp_path, exported, monkeypatch):
    monkeypatch.setattr(run, "complete", lambda *_, **__: pytest.fail("trained"))
    some = {name: paper.EXPERIMENTS[name] for name in ("figure1", "figure6", "coupling")}
    monkeypatch.setattr(paper, "EXPERIMENTS", some)
    status, out, err = heatbath("report", "exports", "--out", "page")
    assert (status, err) == (0, "")
    assert "The report, at the scale smoke: page/report.html" in out
    assert re.search(r"^coupling: .*\nBoth couplings reach the same test accuracy", out, re.MULTILINE)
    assert re.search(r"^figure1: undecided", out, re.MULTILINE)
    assert "Not complete: figure1;" in out
    page = (tmp_path / "page" / "report.html").read_text()
    assert str(tmp_path) not in page  # pages are sent to others
    assert "<dt>only at the scale paper</dt><dd>figure6</dd>" in page


def test_report_tells_where_files_disagree_or_are_damaged(heatbath, exported, monkeypatch):
    monkeypatch.setattr(paper, "EXPERIMENTS", {"coupling": paper.EXPERIMENTS["coupling"]})
    assert "Warning" not in heatbath("report", "exports")[1]
    lines = (exported / "some.jsonl").read_text().splitlines()
    changed = json.loads(lines[1])
    changed["curves"]["test_accuracy"][-1] += 0.001
    (exported / "some.jsonl").write_text(lines[0] + "\n" + signed_line(changed))
    (exported / "calculations").mkdir()
    (exported / "calculations" / "0123.json").write_text("{")
    status, out, err = heatbath("report", "exports")
    assert (status, err) == (0, "")
    told = f"exports/some.jsonl has other numbers than were read before, and taken, of 1 run: {changed['run'][:8]}"
    assert f"\nWarning: {told}\n" in out
    assert "\nWarning: exports/calculations/0123.json is damaged, and counts as missing\n" in out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "there is no 'nowhere'"),
        (["."], "there is no store in ., nor a .jsonl"),
        (["file"], "file, line 1: not a record of a run"),
        (["foreign"], "is not a store of heatbath"),
        (["file", "--scale", "huge"], "unknown scale 'huge'"),
        (["file", "--out", "file"], "--out file"),
        ([], "SOURCE"),
    ],
)
def test_report_refuses(refused, tmp_path, arguments, words):
    _clutter(tmp_path)
    assert words in refused("report", *arguments)


def test_report_of_other_runs(refused, tmp_path):
    from heatbath.runs.configs import RunConfig

    with Store(tmp_path / "runs") as store:
        store.add([RunConfig(lr=0.123)])
    assert "no run in runs belongs to a figure" in refused("report", "runs")


def test_report_of_a_scale_without_runs(refused, exported, monkeypatch):
    words = "no run in exports belongs to a figure at the scale"
    assert f"{words} paper; there are runs of smoke\n" in refused("report", "exports", "--scale", "paper")
    monkeypatch.setattr(paper, "EXPERIMENTS", {"figure5": paper.EXPERIMENTS["figure5"]})
    assert f"{words} smoke; 'heatbath reproduce' makes" in refused("report", "exports", "--scale", "smoke")


def test_report_of_calculations_without_runs(heatbath, refused, exported, monkeypatch):
    """Those that two scales share are no reason to draw the one without runs."""
    some = {name: paper.EXPERIMENTS[name] for name in ("coupling", "theory")}
    monkeypatch.setattr(paper, "EXPERIMENTS", some)
    smoke, laptop = (some["theory"].calculations(scale)[0] for scale in ("smoke", "laptop"))
    (exported / "calculations").mkdir()
    for calculation in (smoke, laptop):
        kept = {"settings": calculation.settings, "result": {"momenta": [], "forms": {}}}
        (exported / "calculations" / f"{calculation.name}.json").write_text(json.dumps(kept))
    monkeypatch.setattr(reproduction, "report_on", lambda *_, **__: ((), "page"))
    assert heatbath("report", "exports", "--scale", "laptop")[0] == 0
    monkeypatch.setattr(type(smoke), "name", laptop.name)
    assert "there are runs of smoke" in refused("report", "exports", "--scale", "laptop")


def test_report_tells_of_seeds_that_it_does_not_take(heatbath, tmp_path, exported, monkeypatch):
    some = {name: paper.EXPERIMENTS[name] for name in ("figure1", "coupling")}
    monkeypatch.setattr(paper, "EXPERIMENTS", some)
    monkeypatch.setattr(page, "write_report", lambda _figures, folder, **_: folder / "report.html")
    assert "--seeds" not in heatbath("report", "exports")[1]
    run.run(some["coupling"].configs("smoke", 3)[2::3], tmp_path / "third", "cpu", checkpoint_seconds=60.0)
    with Store(tmp_path / "third", read_only=True) as store:
        write_lines(store.records(), exported / "third.jsonl")
    out = heatbath("report", "exports")[1]
    told = "The scale smoke takes fewer seeds than there are of coupling: --seeds 3 takes them too"
    assert f"\n{told}\n" in out
    assert "n = 2" in out
    asked = heatbath("report", "exports", "--seeds", 3)[1]
    assert "n = 3" in asked
    assert "fewer seeds" not in asked


def test_report_names_figures_without_results_once(heatbath, tmp_path, exported, monkeypatch):
    some = {name: paper.EXPERIMENTS[name] for name in ("figure1", "figure5", "coupling", "theory")}
    monkeypatch.setattr(paper, "EXPERIMENTS", some)
    status, out, _ = heatbath("report", "exports", "--out", "page")
    assert status == 0
    assert "\nNot complete: figure1; the report says what is missing\n" in out
    assert "\nWithout any results: figure5, theory\n" in out
    assert out.count("figure5") == out.count("theory") == 1
    table = (tmp_path / "page" / "verdicts.md").read_text()
    assert all(f"| {name} |" in table for name in some)


@pytest.mark.parametrize(
    ("figures", "arguments", "words"),
    [
        (["figure2"], ["--device", "auto"], "heatbath: no GPU is seen: on this CPU expect about 2 weeks\n"),
        (["figure2"], ["--device", "cpu", "--seeds", 1], "heatbath: on this CPU expect about 2 days\n"),
        (["figure2"], ["--quiet"], ""),
        (["figure1", "figure3"], ["--scale", "laptop"], ""),
    ],
)
def test_weeks_on_a_cpu_are_told_before_they_begin(heatbath, monkeypatch, figures, arguments, words):
    def stop(*_arguments):
        raise ValueError("begun")

    monkeypatch.setattr(machine, "choose_device", lambda _device: "cpu")
    monkeypatch.setattr(machine, "available_cores", lambda: 2)
    monkeypatch.setattr(planning, "available_memory", lambda: 2**34)
    monkeypatch.setattr(Local, "prepare", lambda *_: None)
    monkeypatch.setattr(Store, "add", stop)
    assert heatbath("reproduce", *figures, "--scale", "paper", *arguments)[2] == f"{words}heatbath: begun\n"


@pytest.mark.parametrize("width", [60, 120, None])
def test_verdicts_fit_the_terminal(capsys, monkeypatch, width):
    found = judge([Claim("Up is more than down, by any measure", "greater", [3.0, 3.1, 3.2], [1.0, 1.1, 1.2])])
    monkeypatch.setattr(screens, "terminal_width", lambda: width)
    monkeypatch.setenv("COLUMNS", str(width or 80))
    verdicts.print_verdicts([("figure1", verdict) for verdict in (*found, *found)])
    out = capsys.readouterr().out
    text = " ".join(out.split())
    assert text.count("confirmed") == 3
    assert text.endswith("2 confirmed")
    assert "margin" not in text
    assert max(map(len, out.splitlines())) <= (width or 80)
    assert not re.search(r"n =?$|^%|\d$", out.removesuffix("\n").rpartition("\n")[0], re.MULTILINE)


def _clutter(folder):
    (folder / "file").write_text(json.dumps({"not": "a record"}) + "\n")
    (folder / "foreign").mkdir()
    (folder / "foreign" / Store.FILE).write_text("mine")


def test_report_on_any_study(heatbath, trained, tmp_path):
    status, out, err = heatbath("report", str(trained), "--by", "protocol", "--by", "coupling", "--out", "page")
    assert (status, err) == (0, "")
    assert "3 comparisons: " in out
    assert out.endswith("\nThe report: page/report.html\n")
    assert (tmp_path / "page" / "study.pdf").is_file()
    assert "| study | test accuracy: " in (tmp_path / "page" / "verdicts.md").read_text()


def test_report_on_a_table_has_no_curves(heatbath, tmp_path):
    rows = [f"{lr},{seed},{0.9 + lr + 0.001 * seed}" for lr in (0.01, 0.02) for seed in range(4)]
    (tmp_path / "mine.csv").write_text("\n".join(("lr,seed,score", *rows)))
    assert heatbath("report", "mine.csv", "--by", "lr", "--metric", "score", "--out", "page")[0] == 0
    panels = {line.split(",")[0] for line in (tmp_path / "page" / "study.csv").read_text().splitlines()[1:]}
    assert panels == {"Score by group"}


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--by", "colour"], "'colour' is not a setting of the runs"),
        (["--by", "model"], "one group only"),
        (["--by", "protocol", "--scale", "smoke"], "--scale and --seeds are for the report on the paper"),
        (["--metric", "test_accuracy"], "need --by"),
        (["--by", "protocol", "--metric", "beauty"], "unknown metric 'beauty'"),
        (["--by", "protocol", "--against", "best"], "'heatbath compare' asks for the best group"),
        (["--by", "protocol", "--by", "coupling", "--margin", "0"], "margin must be"),
        (["--by", "protocol", "--where", "lr"], "--where must be KEY=VALUE"),
    ],
)
def test_report_on_a_study_refuses(refused, trained, tmp_path, arguments, words):
    assert words in refused("report", str(trained), *arguments)
    assert not (tmp_path / "out").exists()
