import pytest
import torch

from protolith.prototypes import average, ema, keep_previous, reweight

# Held by all, by two, by one client, by nobody.
COUNTS = torch.tensor([[5, 2, 0, 0], [1, 0, 3, 0], [2, 7, 0, 0], [9, 0, 0, 0]])


def clients(counts, dim=5, seed=0):
    torch.manual_seed(seed)
    return torch.rand(*counts.shape, dim, dtype=torch.float64) * (counts > 0)[..., None]


def plain_average(prototypes, counts, weighted=False):
    """FPL Eq. 3 over the contributors; by counts as in FedProc."""
    result = []
    for k in range(len(counts[0])):
        total, mean = 0.0, [0.0] * len(prototypes[0][0])
        for m in range(len(counts)):
            if counts[m][k]:
                weight = counts[m][k] if weighted else 1
                total += weight
                mean = [a + weight * b for a, b in zip(mean, prototypes[m][k], strict=True)]
        result.append([value / total if total else 0.0 for value in mean])
    return result


def plain_reweight(prototypes, counts):
    """I2PFL Eqs. 3-4 over the contributors, with the guards."""
    mean = plain_average(prototypes, counts)
    result, weights = [], [[0.0] * len(counts[0]) for _ in counts]
    for k in range(len(counts[0])):
        members = [m for m in range(len(counts)) if counts[m][k]]
        distance = {m: sum((a - b) ** 2 for a, b in zip(prototypes[m][k], mean[k], strict=True)) for m in members}
        total = sum(distance.values())
        vector = [0.0] * len(mean[k])
        for m in members:
            guard = total <= 1e-12 or len(members) == 1
            weights[m][k] = 1 / len(members) if guard else distance[m] / total
            vector = [a + weights[m][k] * b for a, b in zip(vector, prototypes[m][k], strict=True)]
        result.append(vector)
    return result, weights


def close(actual, expected):
    torch.testing.assert_close(actual, torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("seed", range(5))
def test_average(weighted, seed):
    prototypes = clients(COUNTS, seed=seed)
    result, present = average(prototypes, COUNTS, weighted=weighted)
    close(result, plain_average(prototypes.tolist(), COUNTS.tolist(), weighted))
    assert present.tolist() == [True, True, True, False]


def test_average_takes_booleans_and_no_clients():
    prototypes = clients(COUNTS)
    assert torch.equal(average(prototypes, COUNTS > 0)[0], average(prototypes, COUNTS)[0])
    result, present = average(torch.empty(0, 4, 5), torch.empty(0, 4, dtype=torch.int64))
    assert not result.any() and not present.any()


@pytest.mark.parametrize("seed", range(5))
def test_reweight(seed):
    prototypes = clients(COUNTS, seed=seed)
    result, present, weights = reweight(prototypes, COUNTS)
    expected, expected_weights = plain_reweight(prototypes.tolist(), COUNTS.tolist())
    close(result, expected)
    close(weights, expected_weights)
    assert present.tolist() == [True, True, True, False]


def test_reweight_of_two_clients_is_the_mean():
    prototypes = clients(COUNTS[:2])
    result, _, weights = reweight(prototypes, torch.ones(2, 4))
    close(weights, [[0.5] * 4] * 2)
    close(result, prototypes.mean(dim=0).tolist())


def test_reweight_of_identical_prototypes_is_their_mean():
    prototypes = torch.rand(1, 4, 5, dtype=torch.float64).repeat(3, 1, 1)
    result, _, weights = reweight(prototypes, torch.ones(3, 4))
    close(result, prototypes[0].tolist())
    close(weights, [[1 / 3] * 4] * 3)


def test_reweight_favours_the_prototype_far_from_the_mean():
    prototypes = torch.tensor([[[0.0, 1.0]], [[0.0, 1.1]], [[0.0, 0.9]], [[3.0, 1.0]]])
    _, _, weights = reweight(prototypes, torch.ones(4, 1))
    assert weights[:, 0].argmax() == 3 and weights.sum().item() == pytest.approx(1.0)


def test_float32_stays_float32():
    prototypes = clients(COUNTS).float()
    assert {tensor.dtype for tensor in reweight(prototypes, COUNTS)} == {torch.float32, torch.bool}
    assert average(prototypes, COUNTS)[0].dtype == torch.float32


@pytest.mark.parametrize("weight", [0.99, 0.01, 1.0, 0.0])
def test_ema(weight):
    torch.manual_seed(0)
    had, has = torch.tensor([True, True, False, False]), torch.tensor([True, False, True, False])
    previous = torch.rand(4, 3, dtype=torch.float64) * had[:, None]
    new = torch.rand(4, 3, dtype=torch.float64) * has[:, None]
    result, present = ema(previous, had, new, has, weight)
    for k in range(4):
        for v in range(3):
            before, after = previous[k, v].item(), new[k, v].item()
            both = weight * after + (1 - weight) * before
            expected = both if had[k] and has[k] else after if has[k] else before if had[k] else 0.0
            assert result[k, v].item() == pytest.approx(expected, abs=1e-15)
    assert present.tolist() == [True, True, True, False]


def test_keep_previous_changes_only_what_was_sent():
    previous, new = torch.tensor([[1.0], [2.0], [0.0]]), torch.tensor([[5.0], [0.0], [0.0]])
    result, present = keep_previous(previous, torch.tensor([3, 1, 0]), new, torch.tensor([2, 0, 0]))
    assert result.tolist() == [[5.0], [2.0], [0.0]]
    assert present.tolist() == [True, True, False]


CAPS = {
    "one far": [[0.0, 0.0], [0.1, 0.0], [0.0, 0.1], [50.0, 50.0]],
    "two far": [[0.0, 0.0], [0.1, 0.0], [0.0, 0.2], [50.0, 50.0], [-60.0, 50.0], [0.3, 0.1]],
    "identical": [[1.0, 2.0]] * 3,
    "one client": [[1.0, 2.0]],
    "two clients": [[1.0, 2.0], [5.0, 2.0]],
}


def plain_capped(weights, most):
    """Fill up to the limit, the largest first, and give the rest to the others in proportion."""
    weights, full = list(weights), set()
    while True:
        over = [i for i, w in enumerate(weights) if i not in full and w > most + 1e-15]
        if not over:
            return weights
        full |= set(over)
        free = [i for i in range(len(weights)) if i not in full]
        rest, total = 1.0 - most * len(full), sum(weights[i] for i in free)
        for i in full:
            weights[i] = most
        for i in free:
            weights[i] = rest * weights[i] / total if total > 0 else rest / len(free)


@pytest.mark.parametrize("cap", [1.0, 1.2, 2.0, 3.0, 100.0])
@pytest.mark.parametrize("name", CAPS)
def test_capped_weights(name, cap):
    """Our own option: they sum to one and none is above cap / M, M the number of clients that hold the class."""
    points = CAPS[name]
    prototypes = torch.tensor([[p, p] for p in points])
    counts = torch.ones(len(points), 2, dtype=torch.int64)
    if len(points) > 3:
        counts[0, 1] = 0  # the second class has one client fewer
        prototypes[0, 1] = 0
    for label in (0, 1):
        held = [m for m in range(len(points)) if counts[m, label]]
        _, _, before = reweight(prototypes, counts)
        found, _, weights = reweight(prototypes, counts, cap)
        most = cap / len(held)
        assert float(weights[:, label].sum()) == pytest.approx(1.0, abs=1e-6)
        assert float(weights[:, label].max()) <= most + 1e-6
        expected = plain_capped([float(before[m, label]) for m in held], most)
        assert [float(weights[m, label]) for m in held] == pytest.approx(expected, abs=1e-6)
        mean = [sum(w * points[m][v] for w, m in zip(expected, held, strict=True)) for v in range(2)]
        assert found[label].tolist() == pytest.approx(mean, rel=1e-5, abs=1e-5)
        assert len(held) == len(points) or float(weights[0, label]) == 0.0


def test_without_a_cap_nothing_changes():
    prototypes, counts = torch.randn(4, 3, 5), torch.ones(4, 3, dtype=torch.int64)
    assert all(
        torch.equal(a, b) for a, b in zip(reweight(prototypes, counts), reweight(prototypes, counts, 0.0), strict=True)
    )
