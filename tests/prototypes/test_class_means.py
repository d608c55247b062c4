import pytest
import torch

from protolith.prototypes import ClassMeans, labelled


def plain_means(features, labels, classes):
    """FPL Eq. 2, sample by sample."""
    dim = len(features[0])
    means, counts = [[0.0] * dim for _ in range(classes)], [0] * classes
    for vector, label in zip(features, labels, strict=True):
        counts[label] += 1
        for v in range(dim):
            means[label][v] += vector[v]
    for k in range(classes):
        means[k] = [value / counts[k] if counts[k] else 0.0 for value in means[k]]
    return means, counts


@pytest.mark.parametrize("batches", [[1], [5], [7, 1, 4], [64, 64, 3]])
def test_means_over_batches_are_the_means_of_all_samples(batches):
    torch.manual_seed(sum(batches))
    features = torch.rand(sum(batches), 6, dtype=torch.float64)
    labels = torch.randint(0, 4, (sum(batches),))  # class 4 is missing
    means = ClassMeans(classes=5, dim=6)
    for part, part_labels in zip(features.split(batches), labels.split(batches), strict=True):
        means.add(part, part_labels)
    expected, counts = plain_means(features.tolist(), labels.tolist(), 5)
    torch.testing.assert_close(means.means(torch.float64), torch.tensor(expected, dtype=torch.float64))
    assert means.counts.tolist() == counts
    assert means.means()[4].tolist() == [0.0] * 6


def test_sums_do_not_drift_with_many_samples():
    means = ClassMeans(classes=1, dim=1)
    for _ in range(50):
        means.add(torch.full((2000, 1), 0.1), torch.zeros(2000, dtype=torch.int64))
    assert means.means().item() == torch.tensor(0.1).item()  # float32 sums are off in the fourth digit


def test_nothing_is_kept_of_the_graph():
    means = ClassMeans(classes=2, dim=3)
    means.add(torch.rand(4, 3, requires_grad=True), torch.tensor([0, 1, 1, 0]))
    assert not means.means().requires_grad
    assert means.means().dtype == torch.float32


def test_without_samples_all_classes_are_absent():
    means = ClassMeans(classes=2, dim=3)
    means.add(torch.empty(0, 3), torch.empty(0, dtype=torch.int64))
    assert means.means().tolist() == [[0.0] * 3] * 2
    assert means.counts.tolist() == [0, 0]


def test_labelled_lists_what_is_present():
    prototypes = torch.arange(12.0).reshape(2, 3, 2)
    points, labels = labelled(prototypes, torch.tensor([[4, 0, 1], [0, 0, 2]]))
    assert points.tolist() == [[0.0, 1.0], [4.0, 5.0], [10.0, 11.0]]
    assert labels.tolist() == [0, 2, 2]
    points, labels = labelled(prototypes[0], torch.tensor([False, True, False]))
    assert (points.tolist(), labels.tolist()) == ([[2.0, 3.0]], [1])
