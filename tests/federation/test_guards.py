import pytest
import torch

from protolith.federation.guards import Guard, within_limits
from protolith.methods import fedavg
from protolith.methods.base import Roster, Spec
from protolith.methods.registry import get_method
from protolith.records import Upload


class Server(fedavg.Server):
    def schema(self):
        return {
            "prototypes": Spec((3, 4)),
            "clusters": Spec(("C", 4)),
            "labels": Spec(("C",), torch.int64),
            "counts": Spec((3,), torch.int64, least=0),
        }


WEIGHTS = {"w": torch.zeros(2, 3), "n": torch.tensor(0), "bn.running_var": torch.ones(2)}
KNOWLEDGE = {
    "prototypes": torch.zeros(3, 4),
    "clusters": torch.zeros(7, 4),
    "labels": torch.zeros(7, dtype=torch.int64),
    "counts": torch.ones(3, dtype=torch.int64),
}


@pytest.fixture
def guard():
    return Guard(Server(None, WEIGHTS, Roster((10, 20), 3, 4, 5)))


def upload(client=0, count=10, weights=None, knowledge=None, metrics=None):
    return Upload(client, count, {**WEIGHTS, **(weights or {})}, {**KNOWLEDGE, **(knowledge or {})}, metrics or {})


def test_a_good_upload_passes(guard):
    assert guard.problem(upload()) is None
    assert guard.problem(upload(metrics={"ce": 1.5, "steps": 3})) is None
    assert (
        guard.problem(
            upload(1, 20, knowledge={"clusters": torch.zeros(0, 4), "labels": torch.zeros(0, dtype=torch.int64)})
        )
        is None
    )


@pytest.mark.parametrize(
    ("bad", "sentence"),
    [
        ({"client": 2}, "no client 2"),
        ({"client": -1}, "no client -1"),
        ({"count": 11}, "claims 11 images, but the client has 10"),
        ({"count": 0}, "claims 0"),
        ({"weights": {"w": torch.full((2, 3), float("nan"))}}, "weight 'w' has numbers that are not finite"),
        ({"weights": {"w": torch.full((2, 3), float("inf"))}}, "not finite"),
        ({"weights": {"w": torch.zeros(3, 2)}}, r"shape \[3, 2\] instead of \[2, 3\]"),
        ({"weights": {"w": torch.zeros(2, 3, dtype=torch.float64)}}, "float64 instead of torch.float32"),
        ({"weights": {"x": torch.zeros(1)}}, "weight 'x' is not part"),
        ({"knowledge": {"prototypes": torch.zeros(4, 4)}}, "'prototypes' has shape"),
        ({"knowledge": {"clusters": torch.zeros(2, 5)}}, r"\[2, 5\] instead of \[2, 4\]"),
        ({"knowledge": {"clusters": torch.zeros(4)}}, "'clusters' has shape"),
        ({"knowledge": {"labels": torch.zeros(6, dtype=torch.int64)}}, r"'labels' has shape \[6\] instead of \[7\]"),
        ({"knowledge": {"counts": torch.tensor([1, -1, 0])}}, "below 0"),
        ({"knowledge": {"extra": torch.zeros(1)}}, "knowledge 'extra' is not part"),
        ({"knowledge": {"e\nx" * 50: torch.zeros(1)}}, r"knowledge 'e\?xe.*…' is not part"),
        ({"weights": {"w": torch.full((2, 3), 3e38)}}, "numbers above 1e.15"),
        ({"weights": {"w": torch.full((2, 3), -1e16)}}, "numbers below -1e.15"),
        ({"weights": {"n": torch.tensor(2**60)}}, "'n' has numbers above"),
        ({"weights": {"bn.running_var": torch.tensor([1.0, -0.1])}}, "'bn.running_var' has numbers below 0"),
        ({"weights": {"w": None}}, "weight 'w' is not a plain tensor"),
        ({"weights": {"w": torch.zeros(2, 3).to_sparse()}}, "weight 'w' is not a plain tensor"),
        ({"client": "0"}, "no client 0"),
        ({"client": True}, "no client True"),
        ({"count": 9.5}, "claims 9.5 images"),
        ({"count": 10**5000}, "claims a number of many digits images"),
        ({"metrics": {"ce": float("nan")}}, "metric 'ce' is not a finite number"),
        ({"metrics": {"ce": float("inf")}}, "metric 'ce' is not a finite number"),
        ({"metrics": {"ce": "1"}}, "metric 'ce' is not a finite number"),
        ({"metrics": {"ce": 1e31}}, "metric 'ce' is 1e.31, which cannot be"),
        ({"metrics": {"x" * 65: 1.0}}, "has no name of 1 to 64 characters"),
        ({"metrics": {7: 1.0}}, "metric '7' has no name"),
        ({"metrics": {f"m{i}": 1.0 for i in range(65)}}, "has 65 metrics, more than 64"),
    ],
)
def test_a_bad_upload_is_named(guard, bad, sentence):
    import re

    assert re.search(sentence, guard.problem(upload(**bad)))


def test_a_missing_part_is_named(guard):
    without = {name: tensor for name, tensor in WEIGHTS.items() if name != "n"}
    assert guard.problem(Upload(0, 10, without, KNOWLEDGE)) == "weight 'n' is missing"
    assert guard.problem(Upload(0, 10, WEIGHTS, {})) == "knowledge 'clusters' is missing"


def test_one_upload_of_each_awaited_client():
    guard = Guard(Server(None, WEIGHTS, Roster((10, 20), 3, 4, 5)), awaited=[0])
    assert guard.problem(upload()) is None
    assert "has sent an upload already" in guard.problem(upload())
    assert "nothing is expected" in guard.problem(upload(1))


def test_counts_by_class_add_up_and_there_are_no_more_clusters_than_images():
    fpl = get_method("fpl")
    server = fpl.server(fpl.params(), {}, Roster((10, 20), 3, 4, 5))
    sent = {"prototypes": torch.zeros(3, 4), "counts": torch.tensor([5, 0, 5])}
    assert Guard(server).problem(Upload(0, 10, {}, sent)) is None
    said = Guard(server).problem(Upload(1, 11, {}, sent))
    assert said == "claims 11 images, but its counts by class add up to 10"
    wrapped = {**sent, "counts": torch.tensor([2**62, 2**62, 2**63 - 1])}
    assert "has numbers above 20" in Guard(server).problem(Upload(0, 10, {}, wrapped))
    server = fpl.server(fpl.params(), {}, Roster((10, 20), 3, 4, 5, exact_counts=False))
    assert Guard(server).problem(Upload(1, 11, {}, sent)) is None
    fedplvm = get_method("fedplvm")
    server = fedplvm.server(fedplvm.params(), {}, Roster((10, 20), 3, 4, 5))
    for number, said in ((0, "sends 0 prototypes of 10 images"), (10, None), (11, "sends 11 prototypes of 10 images")):
        sent = {"prototypes": torch.zeros(number, 4), "labels": torch.zeros(number, dtype=torch.int64)}
        assert Guard(server).problem(Upload(0, 10, {}, sent)) == said


@pytest.mark.parametrize(
    ("privacy", "exact"), [({}, True), ({"clip": 5.0, "noise": 1.0}, False), ({"least": 3}, False)]
)
def test_noisy_counts_need_not_add_up(privacy, exact):
    from protolith.data.tasks import load_task
    from protolith.federation.local_update import Workplace
    from protolith.runs.config import complete_for, resolve

    task = load_task("mini")
    settings = {"method": "fpl", "params": {"proto_pass": "eval_pass"}, "privacy": privacy, "model": {"width": 4}}
    assert Workplace(complete_for(resolve([settings]), task), task).server().roster.exact_counts is exact


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e16, -1e16])
def test_one_look_at_weights_that_lie_side_by_side_sees_what_each_would_show(bad):
    block = torch.linspace(-1, 1, 10)
    record = {"a": block[:4], "n": torch.tensor(3), "b": block[4:]}
    assert within_limits(record)
    assert not within_limits({"a": block[:4], "b": block[5:]})  # a gap: it cannot be told
    block[7] = bad
    assert not within_limits(record)
