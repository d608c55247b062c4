import pytest
import torch

from protolith.federation.guards import Guard
from protolith.methods import fedavg
from protolith.methods.base import Roster, Spec
from protolith.records import Upload


class Server(fedavg.Server):
    def schema(self):
        return {
            "prototypes": Spec((3, 4)),
            "clusters": Spec(("C", 4)),
            "labels": Spec(("C",), torch.int64),
            "counts": Spec((3,), torch.int64, least=0),
        }


WEIGHTS = {"w": torch.zeros(2, 3), "n": torch.tensor(0)}
KNOWLEDGE = {
    "prototypes": torch.zeros(3, 4),
    "clusters": torch.zeros(7, 4),
    "labels": torch.zeros(7, dtype=torch.int64),
    "counts": torch.ones(3, dtype=torch.int64),
}


@pytest.fixture
def guard():
    return Guard(Server(None, WEIGHTS, Roster((10, 20), 3, 4, 5)))


def upload(client=0, count=10, weights=None, knowledge=None):
    return Upload(client, count, {**WEIGHTS, **(weights or {})}, {**KNOWLEDGE, **(knowledge or {})})


def test_a_good_upload_passes(guard):
    assert guard.problem(upload()) is None
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
    ],
)
def test_a_bad_upload_is_named(guard, bad, sentence):
    import re

    assert re.search(sentence, guard.problem(upload(**bad)))


def test_a_missing_part_is_named(guard):
    assert guard.problem(Upload(0, 10, {"w": torch.zeros(2, 3)}, KNOWLEDGE)) == "weight 'n' is missing"
    assert guard.problem(Upload(0, 10, WEIGHTS, {})) == "knowledge 'clusters' is missing"
