import math
import random
import warnings

import pytest
import torch
from threadpoolctl import threadpool_limits

from protolith.prototypes import cluster_means, finch

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # it warns when its optional neighbour search is not installed
    from finch import FINCH

CLOSE_CALL = 1e-6  # float32 cosines, in the package, cannot tell such neighbours apart


@pytest.fixture(autouse=True)
def one_thread():
    """Small matrices on a busy machine: threads only wait for each other."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    with threadpool_limits(1):
        yield
    torch.set_num_threads(threads)


def plain_direction(point):
    length = math.sqrt(sum(x * x for x in point))
    return [x / length if length else 0.0 for x in point]


def plain_step(points):
    """Link i and j if κ_i = j, κ_j = i or κ_i = κ_j; return components and closest call."""
    n, neighbour, closest = len(points), [], math.inf
    directions = [plain_direction(point) for point in points]
    for i in range(n):
        distances = sorted(
            (round(1 - sum(x * y for x, y in zip(directions[i], directions[j], strict=True)), 12), j)
            for j in range(n)
            if j != i
        )
        neighbour.append(distances[0][1])
        if n > 2:
            closest = min(closest, distances[1][0] - distances[0][0])
    labels = list(range(n))
    for i in range(n):
        for j in range(n):
            if neighbour[i] == j or neighbour[j] == i or neighbour[i] == neighbour[j]:
                old, new = max(labels[i], labels[j]), min(labels[i], labels[j])
                labels = [new if label == old else label for label in labels]
    order = sorted(set(labels))
    return [order.index(label) for label in labels], closest


def plain_finch(points):
    """Every partition that the rule keeps, and the closest call on the way."""
    labels, closest = plain_step(points)
    partitions = [labels]
    while max(labels) > 0:
        means = []
        for c in range(max(labels) + 1):
            members = [p for p, label in zip(points, labels, strict=True) if label == c]
            means.append([sum(column) / len(members) for column in zip(*members, strict=True)])
        merged, call = plain_step(means)
        closest = min(closest, call)
        if max(merged) == 0:
            break
        labels = [merged[label] for label in labels]
        partitions.append(labels)
    return partitions, closest


def canonical(labels):
    """Number clusters in the order of their first members."""
    names = {}
    return [names.setdefault(label, len(names)) for label in labels]


def random_points(seed, largest):
    """Points like features: around a few centres, without negative coordinates; or anything at all."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    n, dim = draw.randint(2, largest), draw.choice([8, 32, 128])
    if draw.random() < 0.3:
        return torch.randn(n, dim)
    centres = torch.rand(draw.randint(1, 12), dim)
    return (centres[torch.randint(len(centres), (n,))] + draw.choice([0.05, 0.3]) * torch.randn(n, dim)).relu()


def test_agrees_with_the_plain_loop():
    several = 0
    for seed in range(60):
        points = random_points(seed, largest=40)
        partitions, _closest = plain_finch(points.double().tolist())
        assert finch(points, "first").tolist() == canonical(partitions[0])
        assert finch(points, "last").tolist() == canonical(partitions[-1])
        several += len(partitions) > 1
    assert several > 20  # the two partitions do differ


@pytest.mark.slow
def test_agrees_with_the_authors_package():
    close_calls = 0
    for seed in range(1000):
        points = random_points(seed, largest=200)
        ours = [finch(points, "first").tolist(), finch(points, "last").tolist()]
        if len(points) == 2:
            assert ours == [[0, 0], [0, 0]]
            continue
        theirs = FINCH(points.numpy(), distance="cosine", ensure_early_exit=False, verbose=False)[0]
        if ours != [canonical(theirs[:, column].tolist()) for column in (0, -1)]:
            partitions, closest = plain_finch(points.double().tolist())
            assert closest < CLOSE_CALL, seed
            assert ours == [canonical(partitions[0]), canonical(partitions[-1])], seed
            close_calls += 1
    assert close_calls < 10


@pytest.mark.parametrize("n", [0, 1, 2])
@pytest.mark.parametrize("partition", ["first", "last"])
def test_two_points_or_fewer_are_one_cluster(n, partition):
    assert finch(torch.rand(n, 4), partition).tolist() == [0] * n


def test_two_far_pairs_are_two_clusters():
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.1], [0.1, 1.0]])
    assert finch(points, "first").tolist() == finch(points, "last").tolist() == [0, 1, 0, 1]


@pytest.mark.parametrize("n", [3, 10, 300])
def test_identical_points_are_one_cluster(n):
    torch.manual_seed(n)
    points = torch.rand(1, 512).repeat(n, 1)
    assert finch(points, "first").tolist() == [0] * n  # ties go to the lowest index: all name point 0
    scaled = points * torch.rand(n, 1).add(0.1)  # the same direction, but for rounding errors
    assert finch(scaled, "first").tolist() == [0] * n


@pytest.mark.parametrize("copies", [2, 5])
def test_copies_stay_together(copies):
    torch.manual_seed(copies)
    points = torch.randn(20, 64).repeat(copies, 1)
    labels = finch(points, "first").reshape(copies, 20)
    assert (labels == labels[0]).all() and int(labels.max()) == 19


def test_zero_vectors_are_at_distance_one_from_everything():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 0.1], [0.0, 0.0], [0.0, 1.0], [0.1, 1.0]])
    # The first zero vector takes the lowest index that is not itself (1), the second takes 0.
    assert finch(points, "first").tolist() == [0, 0, 0, 0, 1, 1]
    assert finch(torch.zeros(5, 3)).tolist() == [0] * 5


def test_length_does_not_matter_for_the_first_partition():
    torch.manual_seed(0)
    points = torch.rand(50, 16)
    scaled = points * 2.0 ** torch.randint(-20, 20, (50, 1))
    assert torch.equal(finch(points, "first"), finch(scaled, "first"))


def test_does_not_depend_on_the_size_of_the_blocks(monkeypatch):
    torch.manual_seed(0)
    points = torch.rand(101, 16)
    whole = finch(points)
    for block in (1, 1000, 101 * 7):
        monkeypatch.setattr("protolith.prototypes.neighbours.BLOCK", block, raising=True)
        assert torch.equal(finch(points), whole)


def test_float64_input_gives_the_same_as_what_travels():
    points = torch.rand(80, 8, dtype=torch.float64)
    assert torch.equal(finch(points), finch(points.float()))


def test_cluster_means():
    points = torch.tensor([[1.0, 2.0], [3.0, 4.0], [5.0, 8.0]])
    assert cluster_means(points, torch.tensor([0, 1, 0])).tolist() == [[3.0, 5.0], [3.0, 4.0]]
    assert cluster_means(torch.empty(0, 2), torch.empty(0, dtype=torch.int64)).shape == (0, 2)
