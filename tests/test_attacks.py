"""Attacks: what each does to an upload, who attacks, and that runs with attackers repeat byte for byte."""

import pytest
import torch

from protolith.data.domain import Split
from protolith.errors import UserError
from protolith.federation.guards import Guard
from protolith.federation.layers.attack import BURST, Attack, absent, attackers, forged, poisoned
from protolith.methods import fedavg
from protolith.methods.base import Roster
from protolith.records import Broadcast, Upload
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.runner import Observer
from protolith.seeds import generator

SENT = Broadcast(
    {"w": torch.tensor([1.0, 2.0]), "bn.running_var": torch.ones(2)},
    {"global": torch.full((3, 2), 7.0), "present": torch.tensor([True, False, True])},
)


def upload():
    prototypes = torch.tensor([[1.0, 0.0], [0.0, 0.0], [3.0, 4.0]])
    return Upload(
        0,
        10,
        {"w": torch.tensor([1.5, 1.0]), "bn.running_var": torch.full((2,), 2.0)},
        {"prototypes": prototypes, "counts": torch.tensor([4, 0, 6])},
        {"ce": 1.0},
    )


def forge(kind, **settings):
    return forged(Attack(kind=kind, **settings), upload(), SENT, generator(0, "test"))


def test_moves_of_the_weights():
    assert forge("sign-flip", strength=1).weights["w"].tolist() == [0.5, 3.0]
    assert forge("sign-flip").weights["w"].tolist() == [-1.0, 6.0]  # four times as far
    assert forge("scale").weights["w"].tolist() == [6.0, -8.0]
    noisy = forge("noise", strength=3)
    drawn = torch.randn(2, generator=generator(0, "test"))
    rms = ((0.25 + 1.0) / 2) ** 0.5
    torch.testing.assert_close(noisy.weights["w"], torch.tensor([1.5, 1.0]) + 3 * rms * drawn)
    for kind in ("sign-flip", "scale", "noise"):
        made = forge(kind)
        assert made.weights["bn.running_var"].tolist() == [2.0, 2.0] and made.metrics == {"ce": 1.0}
        assert torch.equal(made.knowledge["prototypes"], upload().knowledge["prototypes"])


def test_prototypes():
    shifted = forge("prototype-shift").knowledge["prototypes"]
    assert shifted.tolist() == [[3.0, 4.0], [0.0, 0.0], [1.0, 0.0]]  # among the classes that the client holds
    far = forge("prototype-far").knowledge["prototypes"]
    moved = torch.linalg.vector_norm(far - upload().knowledge["prototypes"], dim=1)
    torch.testing.assert_close(moved, torch.tensor([10.0, 0.0, 50.0]))
    assert torch.equal(forge("prototype-far").weights["w"], upload().weights["w"])


def test_the_rest():
    copied = forge("copycat")
    assert torch.equal(copied.weights["w"], SENT.weights["w"])
    assert copied.knowledge["prototypes"].tolist() == [[7.0, 7.0], [0.0, 0.0], [7.0, 7.0]]
    server = fedavg.Server(None, {name: t.clone() for name, t in SENT.weights.items()}, Roster((10,), 3, 2, 5))
    bomb = forge("nan")
    assert "not finite" in Guard(server).problem(Upload(0, 10, bomb.weights))
    split = Split(torch.zeros(4, 1, 1, 3, dtype=torch.uint8), torch.tensor([0, 1, 2, 2]))
    assert poisoned(Attack(kind="label-flip"), split, 3).labels.tolist() == [2, 1, 0, 0]
    assert poisoned(Attack(kind="scale"), split, 3) is split
    for kind in ("none", "label-flip", "dropout-bursts"):
        assert forged(Attack(kind=kind), made := upload(), SENT, generator(0)) is made


def test_attackers_are_drawn_by_the_seed():
    assert attackers(Attack(), 10, 0) == set()
    drawn = [attackers(Attack(kind="scale", share=0.2), 10, seed) for seed in range(20)]
    assert all(len(found) == 2 for found in drawn) and len({tuple(sorted(found)) for found in drawn}) > 5
    assert len(attackers(Attack(kind="nan", share=0.01), 10, 0)) == 1


def test_bursts_last_and_hit_attackers_only():
    attack = Attack(kind="dropout-bursts", share=0.5)
    lying = attackers(attack, 10, 0)
    away = [absent(attack, 10, 0, round_) for round_ in range(30 * BURST)]
    assert set().union(*away) == lying
    for first in range(0, len(away), BURST):
        assert all(found == away[first] for found in away[first : first + BURST])
    assert 0.3 < sum(map(len, away)) / len(away) / len(lying) < 0.7
    assert absent(Attack(kind="scale"), 10, 0, 0) == set()


def result(path):
    lines = RunDirectory.open(path).metrics()
    model = (path / "model.safetensors").read_bytes()
    return model, [line.model_copy(update={"seconds": {}}) for line in lines]


class Crash(BaseException):
    pass


class CrashAfterTwo(Observer):
    def round_done(self, metrics):
        if metrics.round == 2:
            raise Crash


@pytest.mark.parametrize("kind", ["noise", "dropout-bursts"])
def test_a_crash_and_worker_processes_change_nothing_under_attack(kind, tiny, tmp_path):
    values = {**tiny, "method": "fpl", "attack": {"kind": kind, "share": 0.5}, "robust": "trimmed"}
    runner.start(resolve([values]), tmp_path / "whole", Observer())
    with pytest.raises(Crash):
        runner.start(resolve([values]), tmp_path / "crashed", CrashAfterTwo())
    runner.resume(tmp_path / "crashed", Observer(), workers=2)
    assert result(tmp_path / "crashed") == result(tmp_path / "whole")
    runner.start(resolve([{**values, "attack": {}}]), tmp_path / "honest", Observer())
    assert result(tmp_path / "honest") != result(tmp_path / "whole")


def test_a_client_that_sends_nan_sits_out_also_after_a_crash(tiny, tmp_path):
    values = {**tiny, "rounds": 5, "attack": {"kind": "nan", "share": 0.25}}
    directory = runner.start(resolve([values]), tmp_path / "whole", Observer())
    summary, lines = directory.summary(), directory.metrics()
    assert [len(line.rejected) for line in lines] == [1, 1, 1, 0, 0]
    assert [line.clients for line in lines] == [4, 4, 4, 3, 3]
    assert [line.sitting_out for line in lines] == [(), (), ()] + [summary.attack.clients] * 2
    assert summary.attack.kind == "nan" and len(summary.sitting_out) == 1 and summary.rejected == 3
    with pytest.raises(Crash):
        runner.start(resolve([values]), tmp_path / "crashed", CrashAfterTwo())
    runner.resume(tmp_path / "crashed", Observer(), workers=2)
    assert result(tmp_path / "crashed") == result(tmp_path / "whole")


def test_the_command_line_and_the_table_say_that_it_is_an_attack(protolith, tmp_path):
    sets = [f"--set={s}" for s in ("width=4", "epochs=1", "samples=16", "robust=median", "diagnostics=false")]
    common = ["--rounds", 1, "--workers", 0, *sets]
    code, out, err = protolith("run", "--attack", "sign-flip", "--attackers", 0.25, "--out", tmp_path / "r", *common)
    assert code == 0, err
    assert "simulated attack: sign-flip by 25% of the clients" in out
    assert "robust aggregation: median for 20% bad clients" in out
    code, _, err = protolith("run", "--attack", "sigh", "--out", tmp_path / "x", *common)
    assert code == 2 and "attack.kind" in err and "sign-flip" in err
    code, _, err = protolith("run", "--attackers", 0.2, "--out", tmp_path / "x", *common)
    assert code == 2 and "--attackers needs --attack KIND" in err
    code, _, err = protolith("run", "--method", "solo", "--out", tmp_path / "x", *common)
    assert code == 2 and "robust = 'median' is not for solo: its server aggregates nothing" in err
    assert not (tmp_path / "x").exists()


def test_real_sites_are_not_attacked(tmp_path):
    from protolith.flower.site import Site
    from protolith.flower.submit import _refuse_unsuitable

    config = resolve([{"attack": {"kind": "scale"}, "engine": "flower", "deployment": "x"}])
    with pytest.raises(UserError, match="attacks are for simulations"):
        _refuse_unsuitable(config)
    about = {"setup": config.model_dump(mode="json", include={"attack", "method", "task"})}
    with pytest.raises(UserError, match="simulates no attack"):
        Site("a", tmp_path, tmp_path)._workplace(about)
