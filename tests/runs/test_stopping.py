"""Early stopping: decided by validation images alone, the best model is the one that is kept, resumable."""

import pytest
import torch

import protolith as pl
from protolith.data.augment import to_input
from protolith.data.protocols import allocate
from protolith.runs.config import resolve
from protolith.runs.runner import Interrupted, Observer


@pytest.fixture
def settings(tiny):
    protocol = {**tiny["protocol"], "name": "shift", "validation": 0.25}
    return {
        **tiny,
        "rounds": 12,
        "patience": 2,
        "protocol": protocol,
        "training": {"epochs": 1, "batch": 16, "lr": 0.1},
    }


class StopsOnce(Observer):
    def round_done(self, metrics):
        if metrics.round == 2:
            raise KeyboardInterrupt


def accuracy(model, split):
    with torch.inference_mode():
        predicted = model(to_input(split.images, torch.device("cpu"))).argmax(1)
    return 100 * float((predicted == split.labels).double().mean())


def test_the_best_round_by_validation_is_kept_and_a_stopped_run_goes_on_to_it(settings, tmp_path):
    run = pl.fit(out=tmp_path / "whole", **settings)
    values = [line.validation for line in run.rounds]
    best = values.index(max(values))
    assert len(values) == min(12, best + 3)  # two rounds without a better one, then the end
    assert run.summary.rule == f"of round {best + 1} of {len(values)}, chosen by validation images"
    assert run.summary.accuracy == run.rounds[best].accuracy
    task, model = pl.load_task("mini"), run.model()
    for domain in task.domains:
        assert accuracy(model, domain.test) == pytest.approx(run.summary.accuracy[domain.name], abs=0.4)
    with pytest.raises(Interrupted):
        pl.fit(out=tmp_path / "stopped", observer=StopsOnce(), **settings)
    again = pl.resume(tmp_path / "stopped")
    assert [line.validation for line in again.rounds] == values
    assert (again.path / "model.safetensors").read_bytes() == (run.path / "model.safetensors").read_bytes()
    assert "chosen by validation" in run.table() and "never the best round" not in run.table()


def test_validation_images_are_nobodys_training_or_test_images(settings):
    task = pl.load_task("mini")
    protocol = resolve([settings]).protocol
    allocation = allocate(task, protocol, 0)
    for domain in task.domains:
        rows = [set(c.rows.tolist()) for c in allocation.clients if c.domain == domain.name]
        tests = [set(t.rows.tolist()) for t in allocation.measured if t.domain == domain.name]
        parts = rows + tests
        assert len(set().union(*parts)) == sum(map(len, parts))
    sizes = {c.name: len(c.rows) for c in allocation.clients}
    assert all(len(aside.rows) == 6 and sizes[aside.name.removeprefix("validation of ")] == 18
               for aside in allocation.validation)  # fmt: skip


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"protocol": {"name": "shift"}}, "patience needs validation images"),
        ({"method": "solo"}, "whose global model is tested"),
        ({"protocol": {"name": "shift", "samples": 1, "validation": 0.5}}, "too few images for protocol.validation"),
    ],
)
def test_what_cannot_work_is_refused_before_anything_is_written(settings, tmp_path, change, sentence):
    with pytest.raises(pl.UserError, match=sentence):
        pl.fit(out=tmp_path / "run", **{**settings, **change})
    assert not (tmp_path / "run").exists()
