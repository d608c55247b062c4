"""The page of measured results says what the runs' own files say."""

import csv
import json
import re
import statistics
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))

import measured_runs  # noqa: E402
import results_page  # noqa: E402

RUNS = measured_runs.runs()


def test_the_pages_and_the_cells_are_made_of_the_committed_files():
    template = (ROOT / "docs" / "results.md.in").read_text()
    assert results_page.filled(template) == (ROOT / "docs" / "results.md").read_text()
    for page in results_page.PAGES:
        assert "<!-- measured: " in page.read_text()
        assert results_page.refreshed(page.read_text()) == page.read_text()
    picture = ROOT / "docs" / "images" / "verdict.svg"
    assert results_page.verdict_figure.picture() == picture.read_text()
    assert results_page.cells() == (results_page.MEASURED / "cells.csv").read_text()


def test_every_cell_is_in_the_summary_of_its_run_and_is_the_mean_of_its_last_five_rounds():
    cells = list(csv.DictReader((results_page.MEASURED / "cells.csv").read_text().splitlines()))
    assert cells
    for cell in cells:
        summary = json.loads((RUNS / cell["run"] / "summary.json").read_text())
        lines = [json.loads(line) for line in (RUNS / cell["run"] / "metrics.jsonl").read_text().splitlines()]
        kind, column = ("cross", cell["column"].lower()) if cell["column"].isupper() else ("accuracy", cell["column"])
        last = [line[kind][column] for line in lines[-5:]]
        assert float(cell["value"]) == pytest.approx(summary[kind][column], abs=1e-4)
        assert summary[kind][column] == pytest.approx(sum(last) / 5)


def test_the_test_sets_have_the_images_that_gains_are_counted_by():
    for line in (RUNS / "fedavg-seed2-6adfd57ace" / "metrics.jsonl").read_text().splitlines():
        right = [value * measured_runs.IMAGES[name] / 100 for name, value in json.loads(line)["accuracy"].items()]
        assert right == pytest.approx([round(count) for count in right], abs=1e-6) and len(right) == 4
    seed = next(iter(results_page.measured("office10").rows["FedAvg"].values()))
    caltech, amazon, webcam, dslr, _ = seed.accuracy.values()
    assert seed.value("images") == pytest.approx((224 * caltech + 190 * amazon + 58 * webcam + 30 * dslr) / 502)


def test_gains_are_paired_by_seed():
    cells = list(csv.DictReader((results_page.MEASURED / "cells.csv").read_text().splitlines()))

    def mean(row, seed):
        found = [float(c["value"]) for c in cells if (c["experiment"], c["row"], c["seed"]) == ("office10", row, seed)]
        return statistics.fmean(found) if found else None

    pairs = [(mean("Strata", seed), mean("FedAvg", seed)) for seed in "012"]
    gains = [ours - base for ours, base in pairs if ours is not None and base is not None]
    line = next(line for line in results_page.gains("office10").splitlines() if line.startswith("| Strata |"))
    said = [float(word) for word in re.findall(r"[+-]\d+\.\d", line.split("|")[4])]
    assert said == pytest.approx(gains, abs=0.051)
    assert float(re.search(r"[+-]\d+\.\d", line)[0]) == pytest.approx(statistics.fmean(gains), abs=0.051)


def test_an_early_gain_is_that_of_runs_which_end_there():
    def mean(run):
        lines = [json.loads(line) for line in (RUNS / run / "metrics.jsonl").read_text().splitlines()]
        return statistics.fmean(statistics.fmean(line["accuracy"].values()) for line in lines if 3 <= line["round"] < 8)

    cells = csv.DictReader((results_page.MEASURED / "cells.csv").read_text().splitlines())
    run = {(c["row"], c["seed"]): c["run"] for c in cells if c["experiment"] == "office10"}
    gains = [mean(run["FedCode", seed]) - mean(run["FedAvg", seed]) for seed in "012"]
    said = f"{statistics.fmean(gains):+.1f} ± {statistics.stdev(gains):.1f}"
    assert results_page.early("office10", "FedCode", "8") == said


def test_one_round_is_read_from_the_metrics():
    cells = csv.DictReader((results_page.MEASURED / "cells.csv").read_text().splitlines())
    run = next(c["run"] for c in cells if (c["experiment"], c["row"]) == ("pacs", "FedCode"))
    first = json.loads((RUNS / run / "metrics.jsonl").read_text().splitlines()[0])
    assert float(results_page.at("pacs", "FedCode", "1")) == pytest.approx(first["mean"], abs=0.051)
    assert float(results_page.loss("pacs", "FedCode", "ce", "1")) == pytest.approx(first["loss"]["ce"], rel=0.005)


def test_rows_that_begin_as_fedavg_come_from_its_kind_of_processor():
    # Before there are prototypes these do what FedAvg does; another kind of processor gives other last digits.
    like_fedavg = {"fedavg", "fpl", "fedproto", "fedapc", "moon", "strata"}
    cells = csv.DictReader((results_page.MEASURED / "cells.csv").read_text().splitlines())
    first: dict[tuple[str, ...], dict[str, float]] = {}
    for name, run in {(cell["experiment"], cell["run"]) for cell in cells}:
        config = tomllib.loads((RUNS / run / "config.toml").read_text())
        line = json.loads((RUNS / run / "metrics.jsonl").read_text().splitlines()[0])
        if config["method"] in like_fedavg:
            first.setdefault((name, config["protocol"]["unseen"], config["seed"]), {})[run] = line["loss"]["ce"]
    assert all(len(set(losses.values())) == 1 for losses in first.values())
    assert sum(len(losses) for losses in first.values()) > 60


def test_an_interval_is_students():
    # three values, mean 2, deviation 1: 4.3027 × 1 / √3 = 2.484
    assert results_page.interval([1.0, 2.0, 3.0]) == "-0.5 to +4.5"
    assert results_page.interval([1.0]) == "–"


def test_a_dot_of_the_picture_lies_at_the_gain_of_the_cells():
    picture = (ROOT / "docs" / "images" / "verdict.svg").read_text()
    ticks = {int(points): float(x) for x, points in re.findall(r'<text x="([\d.]+)" [^>]*mid.>([-+]\d+)<', picture)}
    unit = (ticks[30] - ticks[-20]) / 50
    cells = list(csv.DictReader((results_page.MEASURED / "cells.csv").read_text().splitlines()))

    def mean(name, row):
        found = [float(c["value"]) for c in cells if (c["experiment"], c["row"]) == (name, row) and c["seed"] in "012"]
        return statistics.fmean(found)

    panels = re.split(r"class=.title.", picture)[1:]
    for name, panel in zip(("office10", "digits", "pacs"), panels, strict=True):
        dots = re.findall(
            r'>([A-Z][^<>%]*)</text>(?:\n<(?:path|circle)[^>]*>)*?\n<circle class="\w+" cx="([\d.]+)"', panel
        )
        assert len(dots) == 6
        for row, x in dots:
            gain = mean(name, row) - mean(name, "FedAvg")
            assert (float(x) - ticks[-20]) / unit - 20 == pytest.approx(gain, abs=0.05), (name, row)


def test_the_answer_is_five_items_that_can_be_read_at_once():
    page = (Path(__file__).parents[2] / "docs/results.md").read_text()
    answer = page.split("domain shift?\n")[1].split("\n![")[0]
    items = [" ".join(item.split()) for item in answer.split("\n- ")[1:]]
    assert len(items) == 5 and max(len(item.split()) for item in items) <= 45 and "Take Strata" in items[0]
