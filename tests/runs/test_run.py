"""A run that is opened: who held which images is read, not worked out again."""

import json

import pytest
import torch

from protolith.data import protocols
from protolith.data.protocols import allocate
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.runs import run as module
from protolith.runs import runner
from protolith.runs.allocation import FILE, Kept
from protolith.runs.config import resolve
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
    assert trained.summary["allocation"] == module.allocation.digest(trained.path)
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
    assert [line["round"] for line in trained.rounds] == [1, 2]
    (trained.path / "summary.json").unlink()
    assert trained.finished is None
    with pytest.raises(UserError, match="is not finished"):
        _ = trained.summary
