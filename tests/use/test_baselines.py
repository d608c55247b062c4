import re

import pytest
from site_helpers import SMALL

import protolith as pl
from protolith.errors import UserError
from protolith.runs.run import Run
from protolith.runs.runner import Observer
from protolith.use.baselines import run_baselines, verdicts


def test_the_sentence_of_each_site_is_true_to_the_table(sites, tmp_path):
    run = pl.fit(task=str(sites), method="fedavg", rounds=1, out=tmp_path / "run", **SMALL)
    found = run.baselines()
    assert list(found.accuracy) == ["FedAvg", "every site alone", "all data pooled"]
    assert found.accuracy["FedAvg"] == run.summary.accuracy
    alone = pl.load(tmp_path / "run" / "baselines" / "alone")
    pooled = pl.load(tmp_path / "run" / "baselines" / "pooled")
    assert alone.config.method == "solo" and alone.summary.accuracy == found.accuracy["every site alone"]
    assert pooled.summary.accuracy == found.accuracy["all data pooled"] and pooled.config.protocol.pool
    assert (pooled.rounds[0].clients, alone.rounds[0].clients) == (1, 3)
    for verdict in found.verdicts:
        federated, lone, points = map(float, re.findall(r"(?:(?<= )|(?<=\())[-+]?\d+\.\d", verdict.sentence)[:3])
        assert federated == pytest.approx(run.summary.accuracy[verdict.site], abs=0.051)
        assert lone == pytest.approx(alone.summary.accuracy[verdict.site], abs=0.051)
        assert points == pytest.approx(verdict.federated - verdict.alone, abs=0.051)
        assert verdict.tested == 16
    assert all(verdict.sentence in found.text() for verdict in found.verdicts)
    assert run_baselines(run, Observer()) == found  # nothing is trained twice


def test_chance_is_not_called_a_gain():
    accuracy = {
        "FPL": {"a": 80.0, "b": 52.0, "c": 30.0},
        "alone": {"a": 50.0, "b": 50.0, "c": 60.0},
        "pooled": {"a": 90.0, "b": 55.0, "c": 70.0},
    }
    a, b, c = verdicts("FPL", accuracy, {"a": 100, "b": 100, "c": 100})
    assert a.sentence.startswith("a: federation paid: 80.0 % with FPL, 50.0 % alone (+30.0 points")
    assert b.sentence.startswith("b: no difference that 100 test images could show") and "(+2.0 points" in b.sentence
    assert c.sentence.startswith("c: federation did not pay") and "all data pooled: 70.0 %." in c.sentence


def test_baselines_need_a_finished_run(run, monkeypatch):
    monkeypatch.setattr(Run, "finished", None)
    with pytest.raises(UserError, match="is not finished"):
        run.baselines()
