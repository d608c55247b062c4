"""Measures: counts that add exactly, whoever counted them, and what is made of them."""

import json
import random

import pytest
import torch

from protolith.data.tasks import load_task
from protolith.engines.in_process import InProcessEngine
from protolith.errors import UserError
from protolith.evaluation import measures
from protolith.evaluation.measures import Accuracy, PerClass, added, count, from_plain, measures_of, to_plain
from protolith.experiments.table import build_tables
from protolith.federation.local_update import Workplace
from protolith.runs import runner
from protolith.runs.config import complete_for, resolve
from protolith.runs.run import Run
from protolith.runs.runner import Observer

BOTH = [Accuracy(), PerClass()]

PLUGIN = """
import torch
from protolith.evaluation.measures import Measure, register_measure
from protolith.methods.base import Spec


class Surety(Measure):
    name = "surety"
    idea = "the mean share of the likeliest class, in thousandths"

    def schema(self, classes):
        return {"sum": Spec((), torch.float64, least=0.0), "images": Spec((), torch.int64, least=0)}

    def count(self, logits, labels):
        share = logits.double().softmax(1).max(1).values
        return {"sum": (share * 2**40).round().sum() / 2**40, "images": torch.tensor(len(labels))}

    def result(self, total):
        return 1000.0 * float(total["sum"]) / int(total["images"])


register_measure(Surety())
"""


def answers(n, classes, seed):
    rng = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (n,), generator=rng)
    return torch.randn(n, classes, generator=rng), labels


@pytest.mark.parametrize(("n", "classes"), [(1, 2), (7, 3), (200, 10), (65, 65)])
def test_accuracy_and_accuracy_by_class_are_those_of_a_plain_loop(n, classes):
    logits, labels = answers(n, classes, n)
    right, held = [0] * classes, [0] * classes
    for row, label in zip(logits.tolist(), labels.tolist(), strict=True):
        held[label] += 1
        right[label] += row.index(max(row)) == label
    counts = count(BOTH, logits, labels)
    assert Accuracy().result(counts["accuracy"]) == 100.0 * sum(right) / n
    by_class = [100.0 * r / h if h else None for r, h in zip(right, held, strict=True)]
    assert PerClass().by_class(counts["per-class"]) == by_class
    there = [value for value in by_class if value is not None]
    assert PerClass().result(counts["per-class"]) == sum(there) / len(there)


def test_counts_of_pieces_add_up_to_those_of_the_whole_however_it_is_cut():
    logits, labels = answers(300, 5, 0)
    whole = to_plain(added([count(BOTH, logits, labels)]))
    cuts = random.Random(0)
    for _ in range(20):
        places = sorted(cuts.sample(range(1, 300), 6))
        pieces = zip([0, *places], [*places, 300], strict=True)
        assert to_plain(added(count(BOTH, logits[a:b], labels[a:b]) for a, b in pieces)) == whole


def test_counts_survive_a_message():
    counts = count(BOTH, *answers(50, 4, 1))
    again = from_plain(json.loads(json.dumps(to_plain(counts))), BOTH, 4, 50)
    assert to_plain(again) == to_plain(counts)


@pytest.mark.parametrize(
    "bad",
    [
        None,
        {},
        {"accuracy": {}},
        {"accuracy": {"correct": 3}},
        {"accuracy": {"correct": 11, "images": 10}},
        {"accuracy": {"correct": -1, "images": 10}},
        {"accuracy": {"correct": 3, "images": 11}},
        {"accuracy": {"correct": 3.0, "images": 10}},
        {"accuracy": {"correct": True, "images": 10}},
        {"accuracy": {"correct": [3], "images": 10}},
        {"accuracy": {"correct": 10**400, "images": 10}},
        {"accuracy": {"correct": float("nan"), "images": 10}},
        {"accuracy": {"correct": "3", "images": 10}},
        {"accuracy": [3, 10]},
    ],
)
def test_counts_that_cannot_be_are_refused(bad):
    with pytest.raises(ValueError, match="accuracy"):
        from_plain(bad, [Accuracy()], 4, 10)


def test_counts_by_class_that_cannot_be_are_refused():
    for right, held in [([5, 0], [4, 6]), ([1, 1], [5, 6]), ([1], [10]), ([1.5, 1], [5, 5])]:
        with pytest.raises(ValueError, match="per-class"):
            from_plain({"per-class": {"correct": right, "images": held}}, [PerClass()], 2, 10)


def test_a_measure_that_there_is_not_gets_the_nearest_word():
    with pytest.raises(UserError, match=r"measure 'per-clas'.*per-class"):
        measures_of(["per-clas"])
    assert [measure.name for measure in measures_of(["per-class"])] == ["accuracy", "per-class"]


def settings(**more):
    return {
        "rounds": 2, "model": {"width": 4}, "training": {"epochs": 1, "batch": 16}, "workers": 0,
        "protocol": {"clients": {"pen": 1, "photo": 1}, "samples": 20}, "measures": ["per-class"], **more,
    }  # fmt: skip


@pytest.mark.parametrize("tested", ["auto", "trained"])
def test_worker_processes_count_the_same(tmp_path, tested):
    runs = [
        runner.start(resolve([settings(workers=workers, tested=tested)]), tmp_path / str(workers), Observer())
        for workers in (0, 2)
    ]
    lines = [[line.model_copy(update={"seconds": {}}) for line in run.metrics()] for run in runs]
    assert lines[0] == lines[1]
    for line in lines[0]:
        classes = line.measures["per-class"].classes
        assert len(classes) == 10 and line.by_images is not None
        assert line.measures["per-class"].domains.keys() == line.accuracy.keys()


def test_accuracy_by_images_counts_each_image_once(tmp_path):
    config = resolve([settings()])
    task = load_task("mini")
    config = complete_for(config, task)
    place = Workplace(config, task)
    counts = InProcessEngine(place).evaluate(place.initial, {})
    run = runner.start(config, tmp_path / "run", Observer())
    line, sizes = run.metrics()[-1], {test.name: len(test.rows) for test in place.allocation.tests}
    assert {name: int(c["accuracy"]["images"]) for name, c in counts.items()} == sizes
    right = sum(line.accuracy[name] * size for name, size in sizes.items())
    assert line.by_images == pytest.approx(right / sum(sizes.values()))
    assert len(set(sizes.values())) > 1  # or it would be the mean over domains


def test_a_measure_of_ones_own_is_one_file_and_reaches_workers_summary_and_table(tmp_path):
    (tmp_path / "surety.py").write_text(PLUGIN)
    try:
        given = settings(workers=2, measures=["surety"], plugins=[str(tmp_path / "surety.py")])
        run = runner.start(resolve([given]), tmp_path / "run", Observer())
        here = runner.start(resolve([{**given, "workers": 0}]), tmp_path / "here", Observer())
        value = run.summary().measures["surety"]
        assert 100 <= value.mean <= 1000 and value == here.summary().measures["surety"]
        table = build_tables([Run(run.path)], "surety")[0]
        assert table.columns == [*run.summary().accuracy, "by images", "mean"]
        assert table.rows[0].mean("by images") == value.by_images
    finally:
        measures.MEASURES.pop("surety", None)


def test_the_table_by_images(tmp_path):
    run = Run(runner.start(resolve([settings()]), tmp_path / "run", Observer()).path)
    table = build_tables([run], "images")[0]
    assert table.columns == ["by images", "mean"]
    assert table.rows[0].mean("by images") == run.summary.by_images
    with pytest.raises(UserError, match="no such values"):
        build_tables([run], "cross")
