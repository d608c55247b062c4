"""A run that is opened: who held which images is read, not worked out again."""

import json
import math

import pytest
import torch
from pydantic import ValidationError

from protolith.data import protocols
from protolith.data.protocols import allocate
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.evaluation.tested import Tested
from protolith.runs import run as module
from protolith.runs import runner
from protolith.runs.allocation import FILE, Kept
from protolith.runs.config import resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.result import Summary
from protolith.runs.round import Round
from protolith.runs.run import Run
from protolith.runs.runner import Observer

KINDS = [
    {"name": "shift", "skew": 0.3},
    {"name": "local"},
    {"name": "unseen", "unseen": "print"},
    {"pool": True},
    {"validation": 0.25},
]


def rows(allocation):
    held = (allocation.clients, allocation.tests, allocation.validation)
    return [[(p.name, p.domain, getattr(p, "owner", None), p.rows.tolist()) for p in part] for part in held]


@pytest.fixture
def trained(tiny, tmp_path):
    """A finished run of a round."""
    runner.start(resolve([{**tiny, "rounds": 1}]), tmp_path / "run", Observer())
    return Run.open(tmp_path / "run")


@pytest.mark.parametrize("protocol", KINDS, ids=str)
def test_an_allocation_that_was_written_is_read_as_it_was(protocol, tmp_path):
    task, config = load_task("mini"), resolve([{"protocol": protocol}])
    made = allocate(task, config.protocol, 3)
    Kept.of(made, task).write(tmp_path / FILE)
    found = Kept.read(tmp_path / FILE)
    assert rows(found.allocation) == rows(made)
    assert all(part.rows.dtype == torch.int64 for part in (*found.allocation.clients, *found.allocation.measured))
    assert found.same_as(Kept.of(made, task)) and not found.same_as(Kept.of(allocate(task, config.protocol, 4), task))
    assert (tmp_path / FILE).stat().st_size < 4 * sum(len(p.rows) for p in (*made.clients, *made.measured)) + 6000


def test_readers_take_the_allocation_from_the_run(trained, monkeypatch):
    expected = rows(allocate(trained.task(), trained.config.protocol, trained.config.seed))
    for place in (module, protocols):
        monkeypatch.setattr(place, "allocate", None)
    assert rows(trained.allocation) == expected


def test_an_older_run_has_no_allocation_and_it_is_worked_out_again(trained):
    expected = rows(trained.allocation)
    (trained.path / FILE).unlink()
    assert rows(Run.open(trained.path).allocation) == expected


def test_another_allocation_than_the_summary_names_is_refused(trained):
    assert trained.summary.allocation == module.allocation.digest(trained.path)
    task = trained.task()
    Kept.of(allocate(task, trained.config.protocol, 77), task).write(trained.path / FILE)
    with pytest.raises(UserError, match=f"{FILE} is damaged: who held which images is not known"):
        _ = Run.open(trained.path).allocation
    (trained.path / FILE).write_bytes(b"rubbish")
    with pytest.raises(UserError, match=f"{FILE} is damaged"):
        _ = Run.open(trained.path).allocation


def test_a_run_does_not_go_on_with_other_images(trained):
    (trained.path / "summary.json").unlink()
    runner.resume(trained.path, Observer())  # what it began with is as it was
    (trained.path / "summary.json").unlink()
    task = trained.task()
    Kept.of(allocate(task, trained.config.protocol, 77), task).write(trained.path / FILE)
    with pytest.raises(UserError, match="now hold other images than when it began"):
        runner.resume(trained.path, Observer())


def test_a_task_that_has_grown_is_not_the_runs(trained, monkeypatch):
    assert trained.task().name == "mini"
    grown = Kept(trained.allocation, {**Kept.read(trained.path / FILE).sizes, "pen": 1})
    grown.write(trained.path / FILE)
    (trained.path / "summary.json").unlink()
    with pytest.raises(UserError, match="task mini now has other images than when"):
        Run.open(trained.path).task()


def test_what_changes_while_a_run_goes_on_is_read_again(trained):
    lines = (trained.path / "metrics.jsonl").read_text()
    assert len(trained.rounds) == 1 and trained.rounds is trained.rounds  # read once
    again = {**json.loads(lines), "round": 2}
    (trained.path / "metrics.jsonl").write_text(lines + json.dumps(again) + "\n")
    assert [line.round for line in trained.rounds] == [1, 2]
    (trained.path / "summary.json").unlink()
    assert trained.finished is None
    with pytest.raises(UserError, match="is not finished"):
        _ = trained.summary


def test_a_summary_of_the_first_format_says_in_words_which_models_were_tested(trained):
    file = trained.path / "summary.json"
    said = json.loads(file.read_text())
    assert (said["format"], said["tested"]) == (2, "global") and "accuracy_of" not in said
    for words, tested in ((tested.words, tested) for tested in Tested):
        old = {key: value for key, value in said.items() if key not in ("format", "tested", "allocation", "by_images")}
        file.write_text(json.dumps({**old, "format": 1, "accuracy_of": words}))
        found = Run.open(trained.path).summary
        assert (found.tested, found.accuracy, found.by_images) == (tested, said["accuracy"], None)


def test_rounds_and_summaries_cannot_be_changed_and_come_back_as_they_were(trained):
    (done,), summary = trained.rounds, trained.summary
    for held, name in ((done, "mean"), (summary, "rule")):
        with pytest.raises(ValidationError, match="frozen"):
            setattr(held, name, None)
    assert Round.of(done.to_json()) == done and Summary.of(summary.to_json()) == summary
    assert done.seconds["total"] > 0 and done.clients == 4 and summary.seconds == done.seconds["total"]


def test_a_number_that_is_not_finite_is_written_as_null_and_read_as_what_it_was(tmp_path):
    run = RunDirectory.create(tmp_path / "run", resolve([{}]))
    run.append_metrics(Round(round=1, loss={"ce": math.inf, "con": 1.5}).to_json())
    assert '"loss": {"ce": null, "con": 1.5}' in (run.path / "metrics.jsonl").read_text()
    (done,) = Run(run.path).rounds
    assert math.isnan(done.loss["ce"]) and done.loss["con"] == 1.5 and not done.tested


def test_a_line_that_is_no_round_is_left_out(tmp_path):
    run = RunDirectory.create(tmp_path / "run", resolve([{}]))
    lines = ['{"format": 2, "round": 1}', '{"format": 2, "round": "many"}', '{"format": 2, "round": 2, "accuracy": 7}']
    (run.path / "metrics.jsonl").write_text("\n".join([*lines, "[]", '{"format": 2, "round": 3, "new": {}}']) + "\n")
    assert [done.round for done in Run(run.path).rounds] == [1, 3]
