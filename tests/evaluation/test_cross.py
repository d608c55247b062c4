"""FedCode's measures against plain loops over clients, and the identities that its tables obey."""

import random

import pytest
import torch

from protolith.data.protocols import TestSet
from protolith.evaluation.cross import client_matrix, cross_domain


def by_loops(a, domains):
    """Section 4.1.4 of FedCode, word by word."""
    everyone = range(len(domains))
    lta = sum(a[n][n] for n in everyone) / len(domains)
    ata = {}
    for d in dict.fromkeys(domains):
        values = [a[n][m] for n in everyone for m in everyone if domains[n] == d and domains[m] != d]
        if values:
            ata[d] = sum(values) / len(values)
    gata = sum(ata.values()) / len(ata) if ata else None
    source = []
    for n in everyone:
        at_home = [a[n][m] for m in everyone if domains[m] == domains[n]]
        source.append(sum(at_home) / len(at_home))
    gasa = sum(source) / len(source)
    return lta, ata, gata, gasa, None if gata is None or gasa == 0 else 100 * gata / gasa


DOMAINS = [
    ["a", "b"],  # one client each
    ["a", "a", "b", "c", "c", "c"],
    ["b", "a", "b", "a", "c"],  # clients of a domain are not neighbours
    ["a", "a", "a"],  # nothing to cross
    ["a"],
    [d for d, count in {"mnist": 5, "usps": 5, "svhn": 3, "syn": 3, "mnistm": 4}.items() for _ in range(count)],
]


@pytest.mark.parametrize("domains", DOMAINS)
@pytest.mark.parametrize("seed", range(5))
def test_the_measures_equal_plain_loops(domains, seed):
    rng = random.Random(seed)
    a = [[100 * rng.random() for _ in domains] for _ in domains]
    found = cross_domain(torch.tensor(a, dtype=torch.float64), list(range(len(domains))), domains)
    lta, ata, gata, gasa, cprr = by_loops(a, domains)
    assert found.lta == pytest.approx(lta) and found.gasa == pytest.approx(gasa)
    assert found.ata == pytest.approx(ata)
    assert found.gata == (None if gata is None else pytest.approx(gata))
    assert found.cprr == (None if cprr is None else pytest.approx(cprr))
    assert list(found.as_metrics()) == ["lta", "ata", "gata", "gasa", "cprr"]


def test_gata_is_the_unweighted_mean_over_domains_and_not_over_clients():
    domains = ["a", "a", "a", "b"]
    a = torch.zeros(4, 4, dtype=torch.float64)
    a[:3, 3], a[3, :3] = 90.0, 30.0
    found = cross_domain(a, [0, 1, 2, 3], domains)
    assert found.ata == {"a": 90.0, "b": 30.0} and found.gata == 60.0  # over clients it would be 75
    assert found.cprr is None  # nothing at home


def test_with_one_client_a_domain_home_is_the_own_test_set():
    a = torch.rand(5, 5, dtype=torch.float64) * 100
    found = cross_domain(a, list(range(5)), list("abcde"))
    assert found.gasa == pytest.approx(found.lta) == pytest.approx(float(a.diagonal().mean()))


def test_one_model_for_all_has_the_same_accuracy_wherever_it_comes_from():
    a = torch.rand(1, 6, dtype=torch.float64).repeat(6, 1) * 100
    found = cross_domain(a, list(range(6)), ["a", "a", "b", "b", "c", "c"])
    by_domain = a[0].view(3, 2).mean(1)
    # Each ATA leaves its own domain out, so with as many clients everywhere the ATAs average to the mean.
    assert found.gata == pytest.approx(float(by_domain.mean())) == pytest.approx(found.gasa)
    assert found.cprr == pytest.approx(100.0)


def test_a_client_that_has_not_trained_yet_is_tested_on_but_has_no_model():
    domains = ["a", "a", "b"]
    a = torch.tensor([[10.0, 20.0, 30.0], [40.0, 50.0, 60.0]], dtype=torch.float64)
    found = cross_domain(a, [1, 2], domains)
    assert found.lta == (20 + 60) / 2
    assert found.ata == {"a": 30.0, "b": 45.0} and found.gasa == (15 + 60) / 2


def test_the_matrix_takes_a_clients_own_test_set_or_that_of_its_domain():
    rows = torch.arange(3)
    own = [TestSet("a-1", "a", rows, 0), TestSet("a-2", "a", rows, 1), TestSet("b-1", "b", rows, 2)]
    accuracy = {2: {"a-1": 1.0, "a-2": 2.0, "b-1": 3.0}, 0: {"a-1": 4.0, "a-2": 5.0, "b-1": 6.0}}
    matrix, clients = client_matrix(own, ["a", "a", "b"], accuracy)
    assert clients == [0, 2] and matrix.tolist() == [[4, 5, 6], [1, 2, 3]]
    shared = [TestSet("a", "a", rows), TestSet("b", "b", rows)]
    matrix, _ = client_matrix(shared, ["a", "a", "b"], {0: {"a": 7.0, "b": 8.0}})
    assert matrix.tolist() == [[7, 7, 8]]
    assert client_matrix(shared[:1], ["a", "a", "b"], {0: {"a": 7.0}}) is None  # an unseen domain
    assert client_matrix(shared, ["a", "a", "b"], {}) is None
