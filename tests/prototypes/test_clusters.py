import pytest
import torch

from protolith.prototypes import class_means_of, cluster_per_class, cluster_points, finch


def two_domains(classes=3, dim=8):
    """Six clients of two domains whose prototypes point in different directions."""
    torch.manual_seed(0)
    domain = torch.eye(dim)[[0, 0, 0, 1, 1, 1]]
    return 5 * domain[:, None, :] + 0.1 * torch.rand(6, classes, dim)


def plain_clusters(prototypes, counts, partition):
    """FPL Eqs. 4-6 class by class, from the cluster labels of the tested FINCH."""
    means, labels, unbiased = [], [], {}
    for k in range(counts.shape[1]):
        members = [m for m in range(len(counts)) if counts[m, k] > 0]
        if not members:
            continue
        assigned = finch(prototypes[members, k], partition).tolist()
        of_class = []
        for c in range(max(assigned) + 1):
            chosen = [prototypes[m, k].double() for m, a in zip(members, assigned, strict=True) if a == c]
            of_class.append(sum(chosen) / len(chosen))
        means += of_class
        labels += [k] * len(of_class)
        unbiased[k] = sum(of_class) / len(of_class)
    return torch.stack(means), labels, unbiased


@pytest.mark.parametrize("partition", ["first", "last"])
@pytest.mark.parametrize("seed", range(5))
def test_clusters_and_unbiased_prototypes(partition, seed):
    torch.manual_seed(seed)
    counts = torch.randint(0, 3, (15, 6))
    counts[:, 1] = 0  # nobody
    counts[:, 2] = torch.eye(15, dtype=torch.int64)[4]  # one client
    counts[:, 3] = torch.eye(15, dtype=torch.int64)[:2].sum(dim=0)  # two clients
    prototypes = torch.rand(15, 6, 8) * (counts > 0)[..., None]
    clusters = cluster_per_class(prototypes, counts, partition)
    means, labels, unbiased = plain_clusters(prototypes, counts, partition)
    torch.testing.assert_close(clusters.prototypes, means.float())
    assert clusters.labels.tolist() == labels
    assert labels.count(1) == 0 and labels.count(2) == 1 and labels.count(3) == 1

    result, present = class_means_of(clusters.prototypes, clusters.labels, 6)
    for k in range(6):
        assert bool(present[k]) == (k in unbiased)
        torch.testing.assert_close(result[k], unbiased[k].float() if k in unbiased else torch.zeros(8))


def test_membership_names_the_cluster_of_each_client_and_class():
    prototypes, counts = two_domains(), torch.ones(6, 3)
    counts[5, 2] = 0
    clusters = cluster_per_class(prototypes, counts)
    assert clusters.membership.T.tolist() == [[0, 0, 0, 1, 1, 1], [2, 2, 2, 3, 3, 3], [4, 4, 4, 5, 5, -1]]
    torch.testing.assert_close(clusters.prototypes[5], prototypes[3:5, 2].mean(dim=0))


def test_unbiased_prototypes_ignore_the_size_of_a_domain():
    prototypes = two_domains()[[0, 0, 0, 0, 0, 3, 4]]
    result, _ = class_means_of(*cluster_per_class(prototypes, torch.ones(7, 3))[:2], classes=3)
    torch.testing.assert_close(result[:, :2], torch.full((3, 2), 2.55), atol=0.06, rtol=0)


def test_points_of_varying_number_per_class():
    points = torch.cat([two_domains(classes=1)[:, 0], torch.rand(1, 8)])
    labels = torch.tensor([4, 4, 4, 4, 4, 4, 2])
    clusters = cluster_points(points, labels)
    assert clusters.labels.tolist() == [2, 4, 4]
    assert clusters.membership.tolist() == [1, 1, 1, 2, 2, 2, 0]
    torch.testing.assert_close(clusters.prototypes[0], points[6])


def test_nothing_to_cluster():
    clusters = cluster_per_class(torch.zeros(3, 4, 5), torch.zeros(3, 4))
    assert clusters.prototypes.shape == (0, 5) and clusters.labels.shape == (0,)
    assert (clusters.membership == -1).all()
    result, present = class_means_of(clusters.prototypes, clusters.labels, 4)
    assert result.shape == (4, 5) and not result.any() and not present.any()
