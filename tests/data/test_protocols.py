import pytest
import torch

from protolith.data.domain import Domain, Split, Task
from protolith.data.protocols import Protocol, allocate, complete, participants, select
from protolith.data.spec import all_tasks
from protolith.errors import UserError


def make_task(sizes, classes=3, name="toy", test=20):
    def split(n, offset):
        images = torch.zeros(n, 8, 8, 3, dtype=torch.uint8)
        images[:, 0, 0, 0] = torch.arange(offset, offset + n) % 256
        return Split(images, torch.arange(n) % classes)

    domains = tuple(Domain(d, split(n, 0), split(test, 100)) for d, n in sizes.items())
    return Task(name, tuple(str(k) for k in range(classes)), domains)


TOY = make_task({"a": 100, "b": 50, "c": 30})


def test_allocations_of_the_papers():
    known = {name: clients for spec in all_tasks().values() for name, clients in spec.allocations.items()}
    assert known["digits-papers"] == {"mnist": 6, "usps": 4, "svhn": 3, "syn": 7}
    assert known["digits-fpl-printed"] == {"mnist": 3, "usps": 7, "svhn": 6, "syn": 4}
    assert known["office10-papers"] == {"caltech": 3, "amazon": 2, "webcam": 1, "dslr": 4}
    assert known["pacs-papers"] == {"photo": 3, "art_painting": 2, "cartoon": 1, "sketch": 4}
    assert known["digits-fedapc"] == {"mnist": 2, "usps": 1, "svhn": 2, "syn": 3}
    assert known["office10-fedapc"] == {"caltech": 3, "amazon": 2, "webcam": 2, "dslr": 1}
    assert known["digit5-fedcode"] == {"mnist": 5, "usps": 5, "svhn": 3, "syn": 3, "mnistm": 4}
    assert known["pacs-fedcode"] == {"photo": 1, "art_painting": 2, "cartoon": 3, "sketch": 4}
    for name, total in {"digits-equal": 20, "office10-equal": 12, "pacs-equal": 12, "digits-papers": 20}.items():
        assert sum(known[name].values()) == total


def test_clients_of_a_domain_share_no_image():
    found = allocate(TOY, Protocol(clients={"a": 3, "b": 2}, samples=0.3), seed=0)
    assert [client.name for client in found.clients] == ["a-1", "a-2", "a-3", "b-1", "b-2"]
    assert [client.id for client in found.clients] == [0, 1, 2, 3, 4]
    rows = torch.cat([client.rows for client in found.clients if client.domain == "a"])
    assert len(rows) == 90 == len(set(rows.tolist()))
    assert [len(client.rows) for client in found.clients] == [30, 30, 30, 15, 15]
    assert [test.name for test in found.tests] == ["a", "b", "c"]


def test_the_last_client_gets_what_is_left_and_nobody_gets_nothing():
    found = allocate(TOY, Protocol(clients={"a": 4}, samples=0.3), seed=0)
    assert [len(client.rows) for client in found.clients] == [30, 30, 30, 10]
    with pytest.raises(UserError, match=r"client a-5 .*protocol\.samples"):
        allocate(TOY, Protocol(clients={"a": 5}, samples=0.3), seed=0)


def test_samples_are_a_number_or_a_fraction_by_domain():
    found = allocate(TOY, Protocol(clients={"a": 1, "b": 1}, samples={"a": 7, "b": 1.0}), seed=0)
    assert [len(client.rows) for client in found.clients] == [7, 50]
    for wrong, sentence in ((1.5, "fraction"), (0, "at least 1"), (-0.1, "fraction")):
        with pytest.raises(UserError, match=sentence):
            allocate(TOY, Protocol(clients={"a": 1}, samples=wrong), seed=0)


def test_without_samples_the_domain_is_divided_among_its_clients():
    found = allocate(TOY, Protocol(clients={"a": 3, "c": 3}), seed=0)
    assert [len(client.rows) for client in found.clients] == [33, 33, 33, 10, 10, 10]


def test_the_seed_and_nothing_else_decides():
    protocol = Protocol(clients={"a": 2, "b": 1}, samples=0.2)
    torch.manual_seed(0)
    first = allocate(TOY, protocol, seed=1)
    torch.manual_seed(99)
    second = allocate(TOY, protocol, seed=1)
    other = allocate(TOY, protocol, seed=2)
    assert all(torch.equal(x.rows, y.rows) for x, y in zip(first.clients, second.clients, strict=True))
    assert not torch.equal(first.clients[0].rows, other.clients[0].rows)


def test_unseen_holds_a_domain_back():
    found = allocate(TOY, Protocol(name="unseen", unseen="b", samples=0.2), seed=0)
    assert [client.domain for client in found.clients] == ["a", "c"]
    assert [test.name for test in found.tests] == ["b"]
    assert len(found.tests[0].rows) == 20
    everything = allocate(TOY, Protocol(name="unseen", unseen="b", samples=0.2, eval="all"), seed=0)
    assert len(everything.tests[0].rows) == 70
    with pytest.raises(UserError, match=r"protocol\.unseen 'd'.*Allowed: a, b, c"):
        allocate(TOY, Protocol(name="unseen", unseen="d"), seed=0)
    with pytest.raises(UserError, match=r"which domain\?.*one of a, b, c"):
        allocate(TOY, Protocol(name="unseen"), seed=0)


def test_equal_gives_every_domain_the_same_number():
    assert complete(Protocol(name="equal"), TOY).clients == {"a": 2, "b": 2, "c": 2}


def test_training_images_are_tested_only_on_demand():
    border = 100
    held_out = allocate(TOY, Protocol(clients={"a": 1}), seed=0).tests[0]
    assert int(held_out.rows.min()) == border
    everything = allocate(TOY, Protocol(clients={"a": 1}, eval="all"), seed=0).tests[0]
    assert int(everything.rows.min()) == 0


def test_local_splits_each_clients_own_data():
    found = allocate(TOY, Protocol(name="local", clients={"a": 2, "b": 1}, samples=0.5), seed=0)
    assert [len(client.rows) for client in found.clients] == [45, 45, 26]
    assert [(test.name, test.owner, len(test.rows)) for test in found.tests] == [
        ("a-1", 0, 15),
        ("a-2", 1, 15),
        ("b-1", 2, 9),
    ]
    for client, test in zip(found.clients, found.tests, strict=True):
        assert not set(client.rows.tolist()) & set(test.rows.tolist())
    rows = torch.cat([*(client.rows for client in found.clients[:2]), *(test.rows for test in found.tests[:2])])
    assert sorted(rows.tolist()) == list(range(120))  # training and official test images together


def test_repair_gives_every_class_and_keeps_the_size():
    labels = torch.tensor([0] * 90 + [1] * 9 + [2])
    images = torch.zeros(100, 8, 8, 3, dtype=torch.uint8)
    task = Task("toy", ("0", "1", "2"), (Domain("a", Split(images, labels), Split(images, labels)),))
    for seed in range(20):
        found = allocate(task, Protocol(clients={"a": 5}, samples=20, repair=True), seed)
        for client in found.clients:
            assert len(client.rows) == 20
            assert set(labels[client.rows].tolist()) == {0, 1, 2}
    lacking = allocate(task, Protocol(clients={"a": 5}, samples=20), 0)
    assert any(2 not in labels[client.rows] for client in lacking.clients)


def test_unknown_domains_are_named():
    for key in ("clients", "samples"):
        with pytest.raises(UserError, match=rf"protocol\.{key} 'd'"):
            allocate(TOY, Protocol(**{key: {"d": 1}}), seed=0)
    with pytest.raises(UserError, match=r"allocation.*office10-papers"):
        allocate(TOY, Protocol(allocation="office10-paper"), seed=0)


def test_a_stand_in_is_allocated_under_its_plain_name():
    task = make_task({"mnist": 700, "usps": 400, "svhn": 2300, "syn*": 800}, name="digits")
    found = allocate(task, Protocol(samples={"mnist": 100, "usps": 72, "svhn": 732, "syn": 100}), seed=0)
    assert len(found.clients) == 20
    assert sum(client.domain == "syn*" for client in found.clients) == 7
    assert {test.name for test in found.tests} == {"mnist", "usps", "svhn", "syn*"}


def test_select_takes_rows_in_their_order():
    domain = TOY.by_name["a"]
    for rows in ([3, 1, 2], [105, 103, 107], [100, 101, 102], [119], [99, 100], [119, 5, 100]):
        chosen = select(domain, torch.tensor(rows))
        expected = [domain.train.images[r, 0, 0, 0] if r < 100 else domain.test.images[r - 100, 0, 0, 0] for r in rows]
        # Training images come first when both parts are asked for; within a part the order is kept.
        order = [i for i, r in enumerate(rows) if r < 100] + [i for i, r in enumerate(rows) if r >= 100]
        assert chosen.images[:, 0, 0, 0].tolist() == [int(expected[i]) for i in order]


def test_participants_are_seeded_and_in_client_order():
    protocol = Protocol(participation=0.4, dropout=0.5)
    rounds = [participants(10, protocol, 0, t) for t in range(50)]
    assert rounds == [participants(10, protocol, 0, t) for t in range(50)]
    for chosen, dropped in rounds:
        assert chosen == sorted(chosen) and len(chosen) + len(dropped) == 4
        assert not set(chosen) & set(dropped)
    assert len({tuple(chosen) for chosen, _ in rounds}) > 20
    assert 60 < sum(len(dropped) for _, dropped in rounds) < 140
    assert participants(10, Protocol(), 0, 0) == (list(range(10)), [])
    assert len(participants(10, Protocol(participation=0.31), 0, 0)[0]) == 4  # rounded up


def test_the_papers_office_clients(shared_data, cache):
    from protolith.data.tasks import load_task

    task = load_task("office10", data=shared_data)
    found = allocate(task, Protocol(samples=0.2, repair=True), seed=0)
    sizes = {(client.domain, len(client.rows)) for client in found.clients}
    assert sizes == {("caltech", 179), ("amazon", 153), ("webcam", 47), ("dslr", 25)}
    for client in found.clients:
        assert set(task.by_name[client.domain].train.labels[client.rows].tolist()) == set(range(10))
