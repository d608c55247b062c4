"""Tables: who stands in which row, what is marked, and how it is written out."""

import csv
import io
import shutil
import statistics
import subprocess

import pytest

from protolith.errors import UserError
from protolith.evaluation.accuracy import reached, spread, worst
from protolith.experiments.render import latex_safe, render
from protolith.experiments.table import Table, TableRow, build_tables
from protolith.runs.config import resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.round import Round
from protolith.runs.run import Run


@pytest.fixture
def make(tmp_path):
    """Write the files of a finished run."""

    def write(name, accuracy, finished=True, of="the global model", **settings):
        run = RunDirectory.create(tmp_path / name, resolve([{"rounds": 2, **settings}]))
        for round_ in (0, 1):
            mean = sum(accuracy.values()) / len(accuracy) * (round_ + 1) / 2
            run.append_metrics({"round": round_ + 1, "mean": mean, "bytes_down": 3_000_000, "bytes_up": 1_000_000})
        config = run.config()
        if finished:
            summary = {
                "method": config.method, "task": config.task, "protocol": "shift", "seed": config.seed, "rounds": 2,
                "rule": "mean of the last 2 rounds (1 to 2)", "accuracy_of": of, "accuracy": accuracy, "notes": [],
                "mean": sum(accuracy.values()) / len(accuracy), "bytes_up": 2_000_000, "bytes_down": 6_000_000,
                "seconds": 5.0,
            }  # fmt: skip
            run.write_summary(summary)
        return Run(run.path)

    return write


def test_seeds_are_averaged_and_variants_have_rows_of_their_own(make):
    runs = [
        make("a", {"x": 10.0, "y": 20.0}, method="i2pfl"),
        make("b", {"x": 30.0, "y": 40.0}, method="i2pfl", seed=1),
        make("c", {"x": 50.0, "y": 60.0}, method="i2pfl", params={"lambda_intra": 1.0}),
        make("d", {"x": 55.0, "y": 5.0}, method="fedavg"),
        make("e", {"x": 0.0, "y": 0.0}, finished=False, method="fedavg", seed=1),
    ]
    (table,) = build_tables(runs)
    assert [row.label for row in table.rows] == ["I2PFL, lambda_intra=1.0", "I2PFL", "FedAvg"]
    first = table.rows[1]
    assert first.values == {"x": [10.0, 30.0], "y": [20.0, 40.0], "mean": [15.0, 35.0]}
    assert first.deviation("x") == pytest.approx(statistics.stdev([10, 30]))
    assert table.columns == ["x", "y", "mean"] and "1 run(s) not finished and left out" in table.footer
    assert [table.rank(row, "x") for row in table.rows] == [2, 0, 1]


def test_columns_are_domains_of_a_named_task_and_sites_of_images_of_ones_own(make):
    own = {"task": "/data/photos", "of": "the clients' own models"}
    named, mine = make("a", {"x": 1.0}, of=own["of"]), make("b", {"x": 2.0}, **own)
    tables = build_tables([named, mine], "cost")
    assert ["worst domain" in table.columns for table in tables] == [True, False]
    assert ["worst site" in table.columns for table in tables] == [False, True]
    assert tables[0].footer == ["† of the clients' own models, each on its own domain"]
    assert tables[1].footer == ["† of the clients' own models, each on its own site"]


def test_other_tasks_and_protocols_get_a_table_of_their_own(make):
    runs = [make("a", {"x": 1.0}), make("b", {"x": 2.0}, protocol={"name": "equal"}), make("c", {"x": 3.0}, seed=1)]
    assert [[len(row.values["x"]) for row in table.rows] for table in build_tables(runs)] == [[2], [1]]


def test_cost_is_by_round_and_a_target_must_be_reached_by_all_seeds(make):
    runs = [make("a", {"x": 40.0, "y": 60.0}), make("b", {"x": 20.0, "y": 30.0}, seed=1)]
    (table,) = build_tables(runs, "cost", target=20.0)
    (row,) = table.rows
    assert row.values["worst domain"] == [40.0, 20.0] and row.values["spread"] == [20.0, 10.0]
    assert row.values["MB up"] == [1.0, 1.0] and row.values["MB down"] == [3.0, 3.0]
    assert row.values["s a round"] == [2.5, 2.5] and row.values["rounds to target"] == [1, 2]
    assert row.values["MB to target"] == [4.0, 8.0]
    (table,) = build_tables(runs, "cost", target=30.0)
    assert "rounds to target" not in table.rows[0].values
    with pytest.raises(UserError, match="--columns cross: these runs have no such values"):
        build_tables(runs, "cross")
    with pytest.raises(UserError, match=r"kind in --columns 'price'.*accuracy"):
        build_tables(runs, "price")


def test_measures_of_domains_and_targets():
    assert worst({"a": 3.0, "b": 1.0, "c": 2.0}) == ("b", 1.0) and spread({"a": 3.0, "b": 1.0}) == 2.0
    lines = [Round(round=r + 1, bytes_down=2, bytes_up=1, mean=mean) for r, mean in enumerate([None, 5.0, 7.0])]
    assert reached(lines, 5.0) == (2, 6) and reached(lines, 6.0) == (3, 9) and reached(lines, 8.0) is None


def awkward() -> Table:
    rows = [
        TableRow("A & B_1 50% $x$ {y} #1 | <b>", {"m*": [1.0, 2.0], "mean": [3.0]}, {"m*": 5.0}),
        TableRow(r"back\slash ~ ^ τ²", {"m*": [4.0], "mean": [2.0]}),
        TableRow("none †", {}, {"mean": 1.5}),
    ]
    return Table(["a header · with 5 %"], ["m*", "mean"], rows, ["† a note"])


def test_markdown_marks_the_best_and_the_second():
    text = render([awkward()], "md")
    assert r"| A & B_1 50% $x$ {y} #1 \| &lt;b> | <u>1.50 ± 0.71 (5.00, -3.50)</u> | **3.00** |" in text
    assert "| none † | – | – (1.50) |" in text and text.count("**") == 4


def test_csv_can_be_read_back():
    lines = list(csv.DictReader(io.StringIO(render([awkward()], "csv"))))
    first = lines[0]
    assert (first["mean"], first["sd"], first["seeds"], first["paper"]) == ("1.5000", "0.7071", "2", "5.0000")
    assert first["difference"] == "-3.5000" and lines[-1]["mean"] == "" and lines[-1]["paper"] == "1.5000"


def test_latex_is_well_formed():
    text = render([awkward()], "latex")
    body = [line for line in text.splitlines() if not line.startswith("%")]
    assert body[0] == r"\begin{tabular}{lrr}" and body[-1] == r"\end{tabular}"
    rows = [line for line in body if line.endswith(r"\\")]
    unescaped = [line.replace(r"\&", "") for line in rows]
    assert len(rows) == 4 and all(line.count("&") == 2 for line in unescaped)
    for line in rows:
        plain = line.replace(r"\{", "").replace(r"\}", "")
        assert plain.count("{") == plain.count("}") and plain.replace(r"\$", "").count("$") % 2 == 0
    assert r"\textbf{4.00}" in text and r"\underline{1.50 $\pm$ 0.71 (5.00, -3.50)}" in text
    assert latex_safe("a_b%~^\\") == r"a\_b\%\textasciitilde{}\textasciicircum{}\textbackslash{}"


@pytest.mark.skipif(shutil.which("pdflatex") is None, reason="pdflatex is not installed")
def test_latex_compiles(tmp_path):
    document = "\n".join(
        [r"\documentclass{article}", r"\begin{document}", render([awkward()], "latex"), r"\end{document}"]
    )
    (tmp_path / "table.tex").write_text(document)
    done = subprocess.run(
        ["pdflatex", "-halt-on-error", "-interaction=nonstopmode", "table.tex"],
        cwd=tmp_path, capture_output=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout.decode(errors="replace")[-2000:]
    assert (tmp_path / "table.pdf").stat().st_size > 5_000


def test_runs_of_different_versions_are_said_in_one_line(make):
    runs = [make("a", {"x": 1.0}), make("b", {"x": 2.0}, method="fpl"), make("c", {"x": 3.0}, seed=1)]
    for run, version in zip(runs, ("0.1.0", "0.1.0", "0.2.0"), strict=True):
        run.directory.write_summary({**run.summary.to_json(), "versions": {"protolith": version, "python": "3.11"}})
    assert build_tables(runs)[0].footer == ["runs of different code: protolith 0.1.0 and 0.2.0"]
    assert build_tables(runs[:2])[0].footer == []


def test_backbones_are_rows_by_name_and_by_weights_where_one_name_has_several(make):
    lite = {"name": "efficientnet-lite0", "sha256": "a" * 64, "tag": "imagenet"}
    other = {**lite, "sha256": "b" * 64, "tag": "mine.pth", "weights": "/somewhere/mine.pth"}
    runs = [
        make("a", {"x": 10.0}, method="fedavg", model=lite, size=32),
        make("b", {"x": 20.0}, method="fedavg", model=lite, size=32, seed=1),
        make("c", {"x": 30.0}, method="fedavg", size=32),
    ]
    (table,) = build_tables(runs)
    assert [row.label for row in table.rows] == ["FedAvg, model.name=efficientnet-lite0", "FedAvg, model.name=resnet10"]
    assert " · resnet10, width 16; efficientnet-lite0, head trained · " in table.header[0]
    (table,) = build_tables([runs[0], make("d", {"x": 40.0}, method="fedavg", model=other, size=32)])
    assert [row.label for row in table.rows] == [f"FedAvg, weights={'a' * 12}", f"FedAvg, weights={'b' * 12}"]
