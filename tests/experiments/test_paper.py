"""The papers' experiments: complete, resolvable, and honest about being reduced."""

import json
import re
from collections import Counter

import pytest

from protolith.data.protocols import plain_name
from protolith.data.spec import all_tasks
from protolith.errors import UserError
from protolith.experiments.paper import Reduction, at_rounds, experiments, get_experiment, plan, reduced_by, tables
from protolith.experiments.printed import printed_table
from protolith.experiments.render import render
from protolith.experiments.sweep import job_name
from protolith.runs.directory import RunDirectory

ALL = list(experiments().values())


def test_there_are_as_many_as_the_papers_have():
    found = Counter((e.paper, "table" if e.kind == "table" else "figure") for e in ALL)
    assert found == {
        ("FPL", "table"): 3, ("FPL", "figure"): 4, ("I2PFL", "table"): 6, ("I2PFL", "figure"): 8,
        ("FedAPC", "table"): 2, ("FedAPC", "figure"): 1, ("FedCode", "table"): 5, ("FedCode", "figure"): 6,
    }  # fmt: skip


@pytest.mark.parametrize("experiment", ALL, ids=lambda e: e.id)
def test_every_experiment_resolves_and_says_what_is_uncertain(experiment):
    planned = plan(experiment, Reduction())
    per_set = [len(all_tasks()[d.run["task"]].domains) if d.leave_out else 1 for d in experiment.datasets]
    assert len(planned) == len(experiment.seeds) * len(experiment.rows) * sum(per_set)
    # No two rows are the same run (studies of two options share the run in which both have their defaults).
    assert len({(job.variant.study, job_name(job.config)) for job in planned}) == len(planned)
    assert experiment.notes and reduced_by(experiment, Reduction()) == []
    for job in planned:
        config = job.config
        assert (config.rounds, config.training.epochs, config.model.width) == (100, 10, 64)
        assert (config.training.lr, config.training.momentum, config.training.weight_decay) == (0.01, 0.9, 1e-5)
        assert config.model.name == (
            "resnet18" if config.task == "pacs" and experiment.paper == "I2PFL" else "resnet10"
        )
        batch = {"FPL": 64, "FedCode": 64, "FedAPC": 32}.get(experiment.paper, 16 if config.task == "pacs" else 32)
        assert config.training.batch == batch
        assert config.protocol.name == {"FedCode": "local"}.get(experiment.paper, config.protocol.name)
        for name, value in job.variant.params.items():
            assert config.params[name] == value or list(config.params[name]) == value


@pytest.mark.parametrize("experiment", [e for e in ALL if e.kind == "table"], ids=lambda e: e.id)
def test_every_row_and_column_of_a_table_has_the_papers_value(experiment):
    theirs = printed_table(experiment.printed)
    assert set(theirs) == {dataset.name for dataset in experiment.datasets}
    for dataset in experiment.datasets:
        rows = theirs[dataset.name]
        assert list(rows) == [variant.name for variant in experiment.rows]
        domains = {plain_name(name) for name in all_tasks()[dataset.run["task"]].domains}
        for cells in rows.values():
            named = {name.removeprefix("ATA ") for name in cells if name.islower() or name.startswith("ATA ")}
            assert named in (set(), domains, {*domains, "mean"})


def finish(job, out, accuracy, cross=None):
    run = RunDirectory.create(out / job_name(job.config), job.config)
    summary = {
        "method": job.config.method, "rounds": job.config.rounds, "seed": job.config.seed, "notes": ["a note"],
        "rule": "mean of the last 5 rounds (96 to 100)", "accuracy_of": "the global model", "accuracy": accuracy,
        "mean": sum(accuracy.values()) / len(accuracy), "task": job.config.task, "protocol": "shift",
    }  # fmt: skip
    if cross:
        summary["cross"] = cross
    run.write_summary(summary)


def test_fedcodes_notes_name_the_temperature_that_is_used():
    named = [e for e in experiments().values() if any("temperature is not stated" in note for note in e.notes)]
    assert len(named) > 5
    for experiment in named:
        note = next(note for note in experiment.notes if "temperature is not stated" in note)
        jobs = [job for job in plan(experiment, Reduction()) if job.variant.method == "fedcode"]
        assert {job.config.params["tau"] for job in jobs} == {float(re.search(r"\((\d\.\d+) here", note)[1])}


def test_our_numbers_stand_beside_the_papers(tmp_path):
    experiment = get_experiment("fpl-table2")
    reduction = Reduction(rounds=5, methods=("fedavg", "fpl", "i2pfl"), tasks=("office10",), seeds=(0, 1))
    planned = plan(experiment, reduction)
    assert [job.variant.name for job in planned] == ["FedAvg", "FPL", "I2PFL"] * 2
    for job in planned[:5]:  # the last is not finished
        value = 50.0 + 10 * job.config.seed + (job.config.method == "fpl")
        finish(job, tmp_path, {"caltech": value, "amazon": value, "webcam": value, "dslr": value - 8})
    (table,) = tables(experiment, reduction, planned, tmp_path)
    assert table.columns == ["caltech", "amazon", "webcam", "dslr", "mean"]
    fedavg, fpl, i2pfl = table.rows
    assert fedavg.values["caltech"] == [50.0, 60.0] and fedavg.values["mean"] == [48.0, 58.0]
    assert fedavg.printed["caltech"] == 60.15 and fedavg.difference("caltech") == pytest.approx(55.0 - 60.15)
    assert i2pfl.values["dslr"] == [42.0] and not i2pfl.printed  # not in FPL's paper
    text = render([table], "text")
    assert "REDUCED, not the paper's experiment: rounds 5 instead of 100, seeds 2 instead of 3" in text
    assert "55.00 ± 7.07 (60.15, -5.15)" in text and "1 run(s) not finished" in text and "digits-fpl-printed" in text
    assert (table.rank(fpl, "mean"), table.rank(fedavg, "mean"), table.rank(i2pfl, "mean")) == (1, 2, 0)
    assert tables(experiment, Reduction(), plan(experiment, Reduction()), tmp_path) == []


def test_unseen_domains_make_one_row(tmp_path):
    experiment = get_experiment("i2pfl-table3")
    reduction = Reduction(tasks=("digits",), methods=("copa",), seeds=(0,))
    planned = plan(experiment, reduction)
    assert [job.config.protocol.unseen for job in planned] == ["mnist", "usps", "svhn", "syn"]
    for job, value in zip(planned, (10.0, 20.0, 30.0, 40.0), strict=True):
        domain = job.config.protocol.unseen
        finish(job, tmp_path, {"syn*" if domain == "syn" else domain: value})
    (table,) = tables(experiment, reduction, planned, tmp_path)
    (row,) = table.rows
    assert row.values == {"mnist": [10.0], "usps": [20.0], "svhn": [30.0], "syn*": [40.0], "mean": [25.0]}
    assert row.printed["syn*"] == 83.25 and row.printed["mean"] == 75.38


def test_fedcodes_measures_come_in_its_order(tmp_path):
    cross = {"lta": 90.0, "ata": {"mnist": 80.0, "mnistm": 81.0}, "gata": 80.5, "gasa": 85.0, "cprr": 94.7}
    for name, columns in {
        "fedcode-table2": ["LTA"],
        "fedcode-table3": ["ATA mnist", "ATA mnistm", "GATA", "GASA", "CPRR"],
        "fedcode-table5": ["LTA", "GASA", "GATA", "CPRR"],
    }.items():
        reduction = Reduction(methods=("fedcode",), tasks=("digit5",))
        planned = plan(get_experiment(name), reduction)
        for job in planned:
            if not (tmp_path / job_name(job.config)).exists():
                finish(job, tmp_path, {"mnist": 1.0}, cross)
        (table,) = tables(get_experiment(name), reduction, planned, tmp_path)
        assert table.columns == columns
        assert all(set(columns) >= set(row.printed) and len(row.printed) >= 1 for row in table.rows)


def test_a_reduction_is_said_and_a_wrong_one_refused():
    experiment = get_experiment("i2pfl-fig7")
    small = Reduction(rounds=3, epochs=1, width=8, seeds=(4,), settings=("lr=0.1",))
    said = ["rounds 3 instead of 100", "local epochs 1 instead of 10", "width 8 instead of 64"]
    assert reduced_by(experiment, small) == [*said, "seeds 1 instead of 3", "lr=0.1"]
    assert {job.config.training.lr for job in plan(experiment, small)} == {0.1}
    with pytest.raises(UserError, match="i2pfl-fig7 has i2pfl only"):
        plan(experiment, Reduction(methods=("fedavg",)))
    with pytest.raises(UserError, match="task in i2pfl-fig7 'mini'"):
        plan(experiment, Reduction(tasks=("mini",)))
    with pytest.raises(UserError, match="fpl-table2"):
        get_experiment("fpl-table-2")


def test_the_rounds_of_a_figure_move_together_with_fewer_rounds():
    experiment = get_experiment("fpl-fig7")
    assert at_rounds(experiment, 100) == [1, 10, 50, 100]
    assert at_rounds(experiment, 10) == [1, 5, 10] and at_rounds(experiment, 1) == [1]
    assert plan(experiment, Reduction(rounds=10))[0].config.keep_models == [1, 5, 10]


def test_papers_ship_with_readable_names():
    text = json.dumps([e.model_dump() for e in ALL], ensure_ascii=False)
    assert "TODO" not in text and all(e.title and e.number for e in ALL)


OWN = """
paper = "Mine"
number = "1"
title = "with and without"
kind = "table"
seeds = [3]
notes = ["a note"]
datasets = [{ name = "Mini", run = { task = "mini", protocol = { samples = 24 } } }]
rows = [
    { name = "plain", method = "fedavg" },
    { name = "styles", method = "fedavg", run = { training = { style_exchange = 0.5 } } },
]

[run]
rounds = 1
model = { width = 4 }
training = { epochs = 1 }
"""


def test_an_experiment_of_ones_own_is_a_file(protolith, tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text(OWN)
    code, out, error = protolith("experiment", file, "--out", tmp_path / "out", "--format", "md")
    assert code == 0, error
    assert "| plain |" in out and "| styles |" in out and "Mine, 1 · Mini" in out
    assert (tmp_path / "out" / "mine.md").exists()
    file.write_text(OWN.replace("kind", "kinds"))
    code, _, error = protolith("experiment", file)
    assert code == 2 and "kind" in error and error.count("\n") == 1
    assert protolith("experiment", tmp_path / "none.toml")[0] == 2
