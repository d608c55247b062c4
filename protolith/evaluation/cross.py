"""How the clients' own models do at home and abroad: the measures of FedCode, section 4.1.4."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from protolith.data.protocols import TestSet


@dataclass(frozen=True)
class CrossDomain:
    """Means in per cent; what cannot be said (there is one domain only) is None."""

    lta: float  # local test accuracy: every model on its client's own test set
    ata: dict[str, float]  # average target accuracy: models of a domain on the clients of all other domains
    gata: float | None  # global average target accuracy: the unweighted mean over domains
    gasa: float  # global average source accuracy: models on the clients of their own domain, their own included
    cprr: float | None  # cross-domain performance retention ratio: 100 GATA / GASA

    def as_metrics(self) -> dict[str, object]:
        """The measures by name."""
        return {"lta": self.lta, "ata": self.ata, "gata": self.gata, "gasa": self.gasa, "cprr": self.cprr}


def cross_domain(matrix: Tensor, rows: Sequence[int], domains: Sequence[str]) -> CrossDomain:
    """Summarise accuracies: `matrix[i, m]` is of the model of client `rows[i]` on the test set of client m.

    `domains[m]` is where client m lives. A client whose model has not been trained yet has a column but no row.
    """
    matrix = matrix.double()
    own = matrix[torch.arange(len(rows)), torch.tensor(rows)]
    names = list(dict.fromkeys(domains))
    index = torch.tensor([names.index(domain) for domain in domains])
    at_home = index[torch.tensor(rows)][:, None] == index[None, :]
    source = (matrix * at_home).sum(1) / at_home.sum(1)
    ata: dict[str, float] = {}
    for number, name in enumerate(names):
        of_domain = index[torch.tensor(rows)] == number
        abroad = matrix[of_domain][:, index != number]
        if abroad.numel():
            ata[name] = float(abroad.mean())
    gata = sum(ata.values()) / len(ata) if ata else None
    gasa = float(source.mean())
    cprr = 100.0 * gata / gasa if gata is not None and gasa > 0 else None
    return CrossDomain(float(own.mean()), ata, gata, gasa, cprr)


def client_matrix(
    tests: Sequence[TestSet], client_domains: Sequence[str], accuracy: Mapping[int, Mapping[str, float]]
) -> tuple[Tensor, list[int]] | None:
    """Arrange accuracies by test set as client × client; None where a client's domain is not tested.

    The test set of a client is its own, or that of its domain.
    """
    by_owner = {test.owner: test.name for test in tests if test.owner is not None}
    by_domain = {test.domain: test.name for test in tests if test.owner is None}
    names = [by_owner.get(client, by_domain.get(domain)) for client, domain in enumerate(client_domains)]
    if not accuracy or any(name is None for name in names):
        return None
    rows = sorted(accuracy)
    return torch.tensor([[accuracy[row][str(name)] for name in names] for row in rows], dtype=torch.float64), rows
