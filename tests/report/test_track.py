"""TensorBoard gets what the run's own metrics say, also of a run that was stopped and went on."""

import builtins

import pytest

import protolith
from protolith.errors import UserError
from protolith.report.track import FOLDER, TensorBoard
from protolith.runs.runner import Interrupted, Observer

SMALL = {
    "rounds": 3,
    "workers": 0,
    "model": {"width": 2},
    "training": {"epochs": 1},
    "protocol": {"name": "shift", "clients": {"pen": 1, "photo": 1}, "samples": 8},
}


class StopsAfterTwo(Observer):
    def __init__(self):
        self.heard = []

    def round_done(self, metrics):
        self.heard.append(metrics.round)
        if metrics.round == 2:
            raise KeyboardInterrupt


def test_every_round_is_there_once_with_the_runs_own_numbers(tmp_path):
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    first, second = TensorBoard(StopsAfterTwo()), TensorBoard(StopsAfterTwo())
    with pytest.raises(Interrupted):
        protolith.fit("fedprox", out=tmp_path / "r", observer=first, **SMALL)
    first.close()
    run = protolith.resume(tmp_path / "r", observer=second)
    second.close()
    assert (first.others.heard, second.others.heard) == ([1, 2], [3])
    events = EventAccumulator(str(run.path / FOLDER))
    events.Reload()
    names = {"accuracy/mean", "accuracy/pen", "loss/ce", "loss/prox", "bytes/up", "seconds/total", "rejected"}
    assert names <= set(events.Tags()["scalars"])
    for name, values in {
        "accuracy/mean": [line.mean for line in run.rounds],
        "loss/ce": [line.loss["ce"] for line in run.rounds],
    }.items():
        found = events.Scalars(name)
        assert [event.step for event in found] == [1, 2, 3]
        assert [event.value for event in found] == pytest.approx(values)


def test_without_tensorboard_one_sentence_says_so(monkeypatch):
    real = builtins.__import__

    def without(name, *rest):
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(UserError, match="TensorBoard is not installed"):
        TensorBoard()
