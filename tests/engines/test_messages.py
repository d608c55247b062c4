"""What comes back from processes and sites is read with care."""

import json
import re
from pathlib import Path

import pytest

from protolith.engines.messages import LINE, read_line, read_trained, sentence, whole
from protolith.federation.guards import METRICS, NAME, Guard
from protolith.flower.wire import SiteFacts
from protolith.methods.base import Roster
from protolith.methods.fedavg import Server
from protolith.records import Upload

GOOD = {"ok": True, "count": 3, "metrics": {"ce": 0.5, "n": 2}, "remembered": False}


def test_a_good_answer():
    said = read_trained(read_line(json.dumps(GOOD)))
    assert (said.count, said.metrics, said.remembered) == (3, {"ce": 0.5, "n": 2.0}, False)
    assert isinstance(said.metrics["n"], float)


@pytest.mark.parametrize("line", ["", "null", "[]", "{}", '{"ok": 1}', "{" * 5000, '"' + "a" * LINE + '"'])
def test_a_line_that_is_no_answer(line):
    with pytest.raises(ValueError):
        read_line(line)


@pytest.mark.parametrize(
    "change",
    [
        {"count": float("inf")}, {"count": -1}, {"count": True}, {"count": "3"}, {"count": 1 << 60}, {"count": None},
        {"metrics": []}, {"metrics": {"a": "1"}}, {"metrics": {"a": True}}, {"metrics": {"a": 10**400}},
        {"metrics": {7: 1.0}}, {"remembered": 1},
    ],
)  # fmt: skip
def test_what_a_client_says_that_cannot_be(change):
    with pytest.raises(ValueError):
        read_trained({**GOOD, **change})


def test_numbers_that_are_not_finite_are_metrics_all_the_same():
    assert read_trained({**GOOD, "metrics": {"ce": float("inf")}}).metrics == {"ce": float("inf")}


@pytest.mark.parametrize(("number", "letters"), [(64, 64), (65, 64), (64, 65), (20_000, 4), (3, 2000)])
def test_how_many_metrics_and_how_long_their_names_is_the_guards_word_alone(number, letters):
    """An answer that is too long for the guard is read, so that the upload is rejected and the run goes on."""
    metrics = {f"{n:0{letters}}": 1.0 for n in range(number)}
    said = read_trained(read_line(json.dumps({**GOOD, "metrics": metrics})))
    problem = Guard(Server(None, {}, Roster((3,), 2, 4, 1))).problem(Upload(0, said.count, metrics=said.metrics))
    assert (problem is None) == (number <= METRICS and letters <= NAME)


def test_both_documents_have_the_limits_of_metrics():
    root = Path(__file__).parents[2]
    for page in ("SECURITY.md", "docs/robust.md"):
        text = " ".join((root / page).read_text().split())
        found = re.findall(r"at most ([\d,]+) metrics\b[^.|]{0,40}names of at most ([\d,]+)", text)
        assert found == [(str(METRICS), str(NAME))], page


FACTS = {"name": "a", "train": 5, "test": 2, "classes": ["x", "y"], "per_class": [2, 3], "notes": ["n"]}


def test_facts_go_there_and_back():
    assert SiteFacts.from_plain(FACTS).plain() == FACTS


@pytest.mark.parametrize(
    "change",
    [
        {"train": 10**12}, {"test": -1}, {"train": float("nan")}, {"classes": "xy"}, {"classes": [1]},
        {"classes": ["x" * 501]}, {"classes": ["a\nb"]}, {"per_class": [-1]}, {"per_class": 5}, {"name": 3},
        {"name": None}, {"notes": "n"}, {"classes": ["c"] * 100_001},
    ],
)  # fmt: skip
def test_facts_that_cannot_be(change):
    with pytest.raises(ValueError):
        SiteFacts.from_plain({**FACTS, **change})


def test_words_from_outside_fit_on_a_line():
    assert sentence("a\x1b[31m\nb\u202e" + "c" * 5000).isprintable() and len(sentence("c" * 5000)) == 1000
    assert whole(0, 0) == 0


def test_a_site_may_not_speak_for_another():
    pytest.importorskip("flwr")
    from protolith.errors import RunFailed
    from protolith.flower.server import _facts
    from protolith.flower.wire import Reply

    assert _facts("a", Reply("a", {"facts": FACTS})).train == 5
    for about in ({"facts": {**FACTS, "name": "b"}}, {"facts": []}, {}, {"facts": {**FACTS, "train": 10**12}}):
        with pytest.raises(RunFailed, match="a sent facts that cannot be used"):
            _facts("a", Reply("a", about))


def test_an_array_must_be_what_it_claims():
    pytest.importorskip("flwr")
    import numpy as np
    import torch
    from flwr.app import Array

    from protolith.flower.carrier import plain_bytes
    from protolith.records import from_bytes, to_bytes

    content = to_bytes({"w": torch.arange(4.0)})
    data = Array(np.frombuffer(content, dtype=np.uint8)).data
    assert plain_bytes(data) == content and torch.equal(from_bytes(plain_bytes(data))["w"], torch.arange(4.0))
    for bad in (data[:-1], data + b"x", Array(np.zeros(3)).data, Array(np.zeros((2, 2), dtype=np.uint8)).data, b""):
        with pytest.raises(ValueError):
            plain_bytes(bad)
