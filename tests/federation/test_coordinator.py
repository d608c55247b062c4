"""The server loop with a real server and an engine that does what the test wants."""

import pytest
import torch

from protolith import records
from protolith.data.protocols import Allocation, Client, Protocol, TestSet
from protolith.errors import RunFailed, UserError
from protolith.federation.coordinator import Coordinator
from protolith.federation.engine import Result
from protolith.federation.rounds import run_round
from protolith.federation.setup import GuardSettings, Setup
from protolith.methods import fedavg
from protolith.methods.base import Roster
from protolith.records import Upload

CLIENTS = tuple(Client(i, f"d-{i + 1}", "d", torch.arange(10 * (i + 1))) for i in range(3))
TESTS = (TestSet("d", "d", torch.arange(5)),)


class Engine:
    """Answers with the client's number as its only weight, unless told otherwise."""

    def __init__(self, uploads=None):
        self.uploads = uploads or {}
        self.jobs = []

    def train(self, jobs, broadcast):
        for job in jobs:
            self.jobs.append(job)
            broadcast(job.client)
            default = Upload(
                job.client, job.size, {"w": torch.tensor([float(job.client)])}, metrics={"ce": job.client + 1.0}
            )
            yield Result(self.uploads.get(job.client, default), remembered=job.client == 1)

    def evaluate(self, weights, knowledge):
        return {"d": {"accuracy": {"correct": (weights["w"] * 60).round().long()[0], "images": torch.tensor(6000)}}}


def coordinator(engine, tmp_path, protocol=None, guard=None, **more):
    setup = Setup(rounds=20, protocol=protocol or Protocol(), guard=guard or GuardSettings())
    server = fedavg.Server(None, {"w": torch.zeros(1)}, Roster((10, 20, 30), 3, 4, 20))
    return Coordinator(setup, Allocation(CLIENTS, TESTS), server, engine, tmp_path, **more)


def test_a_round_averages_by_images_and_says_what_happened(tmp_path):
    metrics = run_round(coordinator(Engine(), tmp_path))
    mean = (0 * 10 + 1 * 20 + 2 * 30) / 60
    assert metrics["mean"] == pytest.approx(mean) and metrics["accuracy"] == {"d": metrics["mean"]}
    assert metrics["loss"]["ce"] == pytest.approx((1 * 10 + 2 * 20 + 3 * 30) / 60)
    assert metrics["bytes_down"] == metrics["bytes_up"] == 12
    assert metrics["rejected"] == [] and metrics["clients"] == 3


def test_a_term_that_one_client_has_is_its_mean_over_that_clients_images(tmp_path):
    """A quarter of the images has the term; its mean there is 4.0, not a quarter of it."""
    others = {m: Upload(m, 10 * (m + 1), {"w": torch.zeros(1)}, metrics={"ce": 1.0}) for m in (0, 2)}
    engine = Engine({**others, 1: Upload(1, 20, {"w": torch.zeros(1)}, metrics={"ce": 3.0, "align": 4.0})})
    loss = run_round(coordinator(engine, tmp_path))["loss"]
    assert loss == pytest.approx({"ce": (1 * 40 + 3 * 20) / 60, "align": 4.0})


def test_a_rejected_upload_changes_nothing_but_the_count(tmp_path):
    engine = Engine({1: Upload(1, 20, {"w": torch.tensor([float("nan")])}, metrics={"ce": float("nan")})})
    metrics = run_round(coordinator(engine, tmp_path))
    assert metrics["mean"] == pytest.approx(2 * 30 / 40)
    assert metrics["rejected"] == [{"client": "d-2", "reason": "weight 'w' has numbers that are not finite"}]
    assert metrics["loss"]["ce"] == pytest.approx((1 * 10 + 3 * 30) / 40)


def test_when_every_upload_is_rejected_the_run_fails_and_says_why(tmp_path):
    bad = {i: Upload(i, 10 * (i + 1), {"w": torch.tensor([float("inf")])}) for i in range(3)}
    with pytest.raises(RunFailed, match="every upload of round 1 was rejected; d-1: weight 'w' has numbers"):
        run_round(coordinator(Engine(bad), tmp_path))


def test_memory_goes_from_the_round_that_wrote_it_to_the_next_that_needs_it(tmp_path):
    engine = Engine()
    c = coordinator(engine, tmp_path, Protocol(participation=0.67))
    wrote = None
    for _ in range(12):
        run_round(c)
        for job in engine.jobs:
            if job.client != 1:
                assert job.memory_in is None
            else:
                assert job.memory_in == (None if wrote is None else c.memory_file(1, wrote))
                wrote = job.round + 1
        engine.jobs.clear()
    assert c.progress.memories == {1: wrote}


def test_a_round_in_which_everyone_drops_out_changes_nothing(tmp_path):
    c = coordinator(Engine(), tmp_path, Protocol(dropout=0.99999))
    metrics = run_round(c)
    assert metrics["clients"] == 0 and metrics["dropped"] == ["d-1", "d-2", "d-3"]
    assert float(c.server.weights["w"]) == 0.0 and metrics["loss"] == {}


def test_only_some_rounds_are_tested_but_always_the_last_five(tmp_path):
    c = coordinator(Engine(), tmp_path, evaluate_every=6)
    tested = [line["round"] for line in (run_round(c) for _ in range(20)) if "accuracy" in line]
    assert tested == [1, 7, 13, 16, 17, 18, 19, 20]


def right(images=10, **correct):
    """Counts of accuracy on test sets of so many images."""
    return {
        name: {"accuracy": {"correct": torch.tensor(count), "images": torch.tensor(images)}}
        for name, count in correct.items()
    }


def test_clients_own_models_are_summarised_at_home_and_across(tmp_path):
    clients = (Client(0, "a-1", "a", torch.arange(10)), Client(1, "b-1", "b", torch.arange(10)))
    tests = tuple(TestSet(name, name, torch.arange(10)) for name in "abc")
    weights = {"w": torch.zeros(1)}
    uploads = {
        0: Upload(0, 10, weights, counts=right(a=9, b=2, c=1)),
        1: Upload(1, 10, weights, counts=right(a=3, b=8, c=5)),
    }

    class Personal(fedavg.Server):
        evaluates = "clients"

    server = Personal(None, weights, Roster((10, 10), 3, 4, 20))
    c = Coordinator(Setup(rounds=20), Allocation(clients, tests), server, Engine(uploads), tmp_path)
    metrics = run_round(c)
    assert metrics["accuracy"] == {"a": 90.0, "b": 80.0, "c": 30.0}  # nobody lives in c: the mean of all
    assert metrics["across"] == {"a": 30.0, "b": 20.0, "c": 30.0}
    assert metrics["by_images"] == 100 * (9 + 8 + 1 + 5) / 40  # all images at home; those of c count for both
    assert metrics["loss"] == {}


def test_a_client_leaves_its_model_where_it_takes_part_for_the_last_time(tmp_path):
    engine = Engine()
    setup = Setup(rounds=20, protocol=Protocol(participation=0.34), tested="trained")
    server = fedavg.Server(None, {"w": torch.zeros(1)}, Roster((10, 20, 30), 3, 4, 20))
    c = Coordinator(setup, Allocation(CLIENTS, TESTS), server, engine, tmp_path, models=tmp_path / "models")
    for _ in range(20):
        run_round(c)
    last = {job.client: job for job in engine.jobs}
    wrote = [job for job in engine.jobs if job.model_out]
    assert wrote and {id(job) for job in wrote} == {id(job) for job in last.values()}
    assert last[0].model_out == tmp_path / "models" / "d-1.safetensors"


def test_aggregated_weights_are_tested_with_each_clients_own_tensors(tmp_path):
    clients = (Client(0, "a-1", "a", torch.arange(10)), Client(1, "b-1", "b", torch.arange(10)))
    tests = (TestSet("a", "a", torch.arange(5)), TestSet("b", "b", torch.arange(5)))
    server = fedavg.Server(None, {"w": torch.zeros(1), "own": torch.zeros(1)}, Roster((10, 10), 3, 4, 2))

    class Keeps(Engine):
        def train(self, jobs, broadcast):
            for job in jobs:
                kept = torch.tensor([10.0 * (job.client + 1)])
                records.write(job.memory_out, {"own/own": kept})
                weights = {"w": torch.tensor([float(job.client)]), "own": kept}
                yield Result(Upload(job.client, job.size, weights), remembered=True)

        def evaluate(self, weights, knowledge):
            a, b = float(weights["w"] + weights["own"]), float(weights["w"] - weights["own"])
            return right(images=1000, a=int(10 * a), b=int(10 * b))

    setup = Setup(rounds=2, tested="aggregated", buffers="local")
    metrics = run_round(Coordinator(setup, Allocation(clients, tests), server, Keeps(), tmp_path))
    assert metrics["matrix"] == {"a-1": [10.5, -9.5], "b-1": [20.5, -19.5]}  # w is 0.5 for both
    assert metrics["accuracy"] == {"a": 10.5, "b": -19.5}
    assert metrics["cross"]["lta"] == (10.5 - 19.5) / 2 and metrics["cross"]["ata"] == {"a": -9.5, "b": 20.5}


def test_what_cannot_be_tested_is_refused(tmp_path):
    class Personal(fedavg.Server):
        evaluates = "clients"

    server = Personal(None, {}, Roster((10,), 3, 4, 20))
    with pytest.raises(UserError, match="has no global model"):
        Coordinator(Setup(tested="global"), Allocation(CLIENTS, TESTS), server, Engine(), tmp_path)
    with pytest.raises(ValueError, match="needs buffers = 'local'"):
        Setup(tested="aggregated")


NAN = {"w": torch.tensor([float("nan")])}


def test_a_client_that_is_rejected_three_times_in_a_row_sits_out(tmp_path):
    engine = Engine({1: Upload(1, 20, NAN)})
    c = coordinator(engine, tmp_path)
    lines = [run_round(c) for _ in range(2)]
    del engine.uploads[1]  # one good upload, and the count begins anew
    lines.append(run_round(c))
    engine.uploads[1] = Upload(1, 20, NAN)
    lines += [run_round(c) for _ in range(5)]
    assert [line["clients"] for line in lines] == [3] * 6 + [2] * 2
    assert [len(line["rejected"]) for line in lines] == [1, 1, 0, 1, 1, 1, 0, 0]
    assert [line["sitting_out"] for line in lines] == [[]] * 6 + [["d-2"]] * 2
    assert c.progress.strikes == {1: 3} == c.progress.copy().strikes


def test_strikes_can_be_counted_otherwise_or_not_at_all(tmp_path):
    for strikes, clients in ((1, [3, 2, 2, 2, 2]), (0, [3] * 5)):
        c = coordinator(Engine({1: Upload(1, 20, NAN)}), tmp_path, guard=GuardSettings(strikes=strikes))
        assert [run_round(c)["clients"] for _ in range(5)] == clients


def test_when_everybody_sits_out_the_run_fails(tmp_path):
    c = coordinator(Engine(), tmp_path)
    c.progress.strikes = {0: 3, 1: 4, 2: 3}
    with pytest.raises(RunFailed, match="all clients sit out: the last 3 uploads of each were rejected"):
        run_round(c)


def test_an_upload_of_nobody_is_named_and_harmless(tmp_path):
    for stranger in (7, -1, "x"):
        c = coordinator(Engine({1: Upload(stranger, 20, {"w": torch.ones(1)})}), tmp_path)
        metrics = run_round(c)
        assert metrics["rejected"] == [{"client": "a stranger", "reason": f"there is no client {stranger}"}]
        assert metrics["mean"] == pytest.approx(2 * 30 / 40) and c.progress.strikes == {}


@pytest.mark.parametrize(("norm", "last"), [("flag", 1e6), ("clip", None), ("drop", 0.0)])
def test_an_absurd_upload_is_flagged_clipped_or_dropped(tmp_path, norm, last):
    """Nine clients move by about one, the tenth by a million."""
    clients = tuple(Client(i, f"d-{i + 1}", "d", torch.arange(10)) for i in range(10))
    uploads = {i: Upload(i, 10, {"w": torch.tensor([1.0 + i / 10])}) for i in range(9)}
    uploads[9] = Upload(9, 10, {"w": torch.tensor([1e6])})

    class Percent(Engine):
        def evaluate(self, weights, knowledge):
            return right(d=0)

    server = fedavg.Server(None, {"w": torch.zeros(1)}, Roster((10,) * 10, 3, 4, 20))
    setup = Setup(rounds=20, guard=GuardSettings(norm=norm))
    c = Coordinator(setup, Allocation(clients, TESTS), server, Percent(uploads), tmp_path)
    metrics = run_round(c)
    (flagged,) = metrics["flagged"]
    assert flagged["client"] == "d-10" and flagged["what"] == "weights" and flagged["z"] > 8
    good = sum(1.0 + i / 10 for i in range(9))
    found = float(server.weights["w"])
    if norm == "flag":
        assert found == pytest.approx((good + last) / 10)
    elif norm == "drop":
        assert found == pytest.approx(good / 9) and c.progress.strikes == {9: 1}
        assert metrics["rejected"][0]["client"] == "d-10" and "norm of its weights" in metrics["rejected"][0]["reason"]
    else:
        assert good / 10 < found < 3 * good / 9 and metrics["rejected"] == [] and metrics["images"] == 100
