"""Familiarity: whether an image resembles anything that the sites have seen, from distances to class prototypes.

An image is judged twice. By its features together with the means and deviations of its colours: how far it is from the
nearest prototype of a class at a site, in units of how far training images of one class and site scatter (Mahalanobis'
distance with one covariance for all, shrunk as Ledoit and Wolf do). And by its surface (protolith.use.surface): how far
it is from the nearest site's mean, in units of how far that site's images scatter. Its distance is the larger of the
two, each divided by what it is among held-out images at most, but for one in twenty. Its familiarity is the part of
held-out images, plus one, that are at least as far away: among images like the sites' own, one in twenty has 0.05 or
less. What is found and what is missed: results/familiarity.md.
"""

import contextlib
import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor

from protolith import records
from protolith.data.domain import Domain, Task
from protolith.data.protocols import Allocation, select
from protolith.data.sources.found import Progress, silent
from protolith.errors import UserError
from protolith.prototypes import ClassMeans
from protolith.records import BadRecord
from protolith.runs.directory import MODEL
from protolith.runs.run import Run
from protolith.seeds import generator
from protolith.use.surface import LENGTH
from protolith.use.trained import Trained

FILE = "familiarity.safetensors"
FALSE_ALARMS = 0.05
# The tensors with which images are judged.
JUDGE = ("prototypes", "counts", "whitening", "surfaces", "surface_whitening", "scales", "calibration")


@dataclass(frozen=True)
class Familiarity:
    """Prototypes [S, K, d] by site and class with their counts [S, K], and what is needed to judge a distance.

    `whitening` [d, d] turns features so that distances are in units of scatter. `surfaces` [S, 7] are the sites' mean
    surfaces, with a whitening [S, 7, 7] each, and `scales` [2] what the two distances are divided by. `calibration`
    are the distances of one half of the held-out images, in ascending order, and `control` those of the other half,
    which tests the first.
    """

    sites: tuple[str, ...]
    classes: tuple[str, ...]
    prototypes: Tensor
    counts: Tensor
    whitening: Tensor
    surfaces: Tensor
    surface_whitening: Tensor
    scales: Tensor
    calibration: Tensor
    control: Tensor

    def two_distances(self, looks: Tensor) -> Tensor:
        """The distances [n, 2] of what images look like [n, d + 7]: to the nearest prototype, to the nearest site."""
        features, seen = looks[:, :-LENGTH].double(), looks[:, -LENGTH:].double()
        points = self.prototypes[self.counts > 0].double() @ self.whitening
        nearest = torch.cdist(features @ self.whitening, points).amin(dim=1)
        away = (seen[:, None] - self.surfaces)[:, :, None] @ self.surface_whitening  # [n, S, 1, 7]
        return torch.stack([nearest, torch.linalg.vector_norm(away, dim=(2, 3)).amin(dim=1)], dim=1)

    def distances(self, looks: Tensor) -> Tensor:
        """The distance [n] of what images look like [n, d + 7]: the larger of the two, in units of what is usual."""
        return (self.two_distances(looks) / self.scales).amax(dim=1)

    def scores(self, looks: Tensor) -> Tensor:
        """The familiarity [n] of what images look like [n, d + 7], above 0 and at most 1."""
        return self.of_distances(self.distances(looks))

    def of_distances(self, distances: Tensor) -> Tensor:
        """The part of the calibration images, plus one, that are at least as far away."""
        nearer = torch.searchsorted(self.calibration, distances.contiguous())
        return (1.0 + len(self.calibration) - nearer) / (len(self.calibration) + 1.0)

    def threshold(self, false_alarms: float = FALSE_ALARMS) -> float:
        """The distance above which an image is unfamiliar; infinite where too few images were held out to tell."""
        within = len(self.calibration) - int(false_alarms * (len(self.calibration) + 1) + 1e-9)
        return float(self.calibration[within]) if within < len(self.calibration) else float("inf")

    def measured(self, false_alarms: float = FALSE_ALARMS) -> float:
        """The false-alarm rate on the half of the held-out images that took no part in the calibration."""
        if not len(self.control):
            return float("nan")
        return float((self.of_distances(self.control) <= false_alarms).double().mean())


def familiarity_of(trained: Trained, progress: Progress = silent) -> Familiarity:
    """Read what was stored beside the run, or compute and store it where the run's images are at hand."""
    path, model = trained.run.path / FILE, _digest(trained.run)
    stored = _stored(path, model)
    if stored is not None:
        return stored
    progress("familiarity: passing the run's images through the model, once")
    found = compute(trained, trained.task())
    with contextlib.suppress(OSError, SafetensorError):  # a directory that may only be read
        write(path, found, model)
    return found


def compute(trained: Trained, task: Task) -> Familiarity:
    """Prototypes from the clients' training images; distances of what no client has trained on."""
    held = _rows_of_clients(trained.run.allocation, task)
    sites = [domain for domain in task.domains if len(held[domain.name])]
    means, residuals, seen, looks = [], [], [], []
    encoded = trained.encoded(task)
    for domain in sites:
        split = select(domain, held[domain.name])
        found = _looks(trained, domain, encoded, held[domain.name])
        features = found[:, :-LENGTH]
        mean = ClassMeans(len(task.classes), features.shape[1])
        mean.add(features, split.labels)
        means.append(mean)
        residuals.append(features.double() - mean.means(torch.float64)[split.labels])
        seen.append(found[:, -LENGTH:].double())
        looks.append(_held_out(trained, domain, encoded, held[domain.name]))
    none = torch.empty(0, dtype=torch.float64)
    judge = Familiarity(
        sites=tuple(domain.name for domain in sites),
        classes=task.classes,
        prototypes=torch.stack([mean.means() for mean in means]),
        counts=torch.stack([mean.counts for mean in means]),
        whitening=_whitening(torch.cat(residuals)),
        surfaces=torch.stack([found.mean(dim=0) for found in seen]),
        surface_whitening=_by_site([found - found.mean(dim=0) for found in seen]),
        scales=torch.ones(2, dtype=torch.float64),
        calibration=none,
        control=none,
    )
    return _calibrated(judge, looks)


def _calibrated(judge: Familiarity, looks: list[Tensor]) -> Familiarity:
    """Take the scales and the calibration from one half of each site's held-out images, the control from the other."""
    halves = [_halves(judge.two_distances(found), name) for found, name in zip(looks, judge.sites, strict=True)]
    calibration, control = (torch.cat(parts) for parts in zip(*halves, strict=True))
    scales = judge.scales
    if len(calibration):
        scales = calibration.quantile(1.0 - FALSE_ALARMS, dim=0).clamp_min(torch.finfo(torch.float64).tiny)
    calibration, control = ((part / scales).amax(dim=1).sort().values for part in (calibration, control))
    return replace(judge, scales=scales, calibration=calibration, control=control)


def write(path: Path, found: Familiarity, model: str) -> None:
    """Store it; `model` is the digest of the model that it belongs to."""
    about = {"sites": list(found.sites), "classes": list(found.classes), "model": model}
    records.write(path, {name: getattr(found, name) for name in (*JUDGE, "control")}, about=about)


def checked_rate(false_alarms: float) -> float:
    """Refuse a false-alarm rate that is none."""
    if not 0.0 < false_alarms < 1.0:
        raise UserError(f"--false-alarms {false_alarms}: a rate between 0 and 1, such as 0.05.")
    return false_alarms


def _stored(path: Path, model: str) -> Familiarity | None:
    try:
        record, about = records.read_with_about(path)
        if about["model"] != model:
            return None
        return Familiarity(tuple(about["sites"]), tuple(about["classes"]), **record)
    except (FileNotFoundError, BadRecord, KeyError, TypeError):
        return None


def _digest(run: Run) -> str:
    with (run.path / MODEL).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _rows_of_clients(allocation: Allocation, task: Task) -> dict[str, Tensor]:
    """The rows that clients train on, by domain."""
    none = torch.empty(0, dtype=torch.int64)
    return {
        domain.name: torch.cat([none, *(c.rows for c in allocation.clients if c.domain == domain.name)]).sort().values
        for domain in task.domains
    }


def _held_out(trained: Trained, domain: Domain, encoded: Task | None, trained_on: Tensor) -> Tensor:
    """Looks of the domain's test part, without what a client trained on."""
    rows = torch.arange(len(domain.train), len(domain.train) + len(domain.test))
    rows = rows[~torch.isin(rows, trained_on)]
    return _looks(trained, domain, encoded, rows) if len(rows) else trained.ask(domain.test.images[:0]).looks


def _looks(trained: Trained, domain: Domain, encoded: Task | None, rows: Tensor) -> Tensor:
    """Looks of some images of a domain."""
    features = select(encoded.by_name[domain.name], rows).images if encoded else None
    return trained.ask(select(domain, rows).images, features).looks


def _halves(distances: Tensor, site: str) -> tuple[Tensor, Tensor]:
    order = torch.randperm(len(distances), generator=generator(0, "familiarity", site))
    cut = (len(distances) + 1) // 2
    return distances[order[:cut]], distances[order[cut:]]


def _by_site(residuals: list[Tensor]) -> Tensor:
    """A whitening for each site; one image does not scatter, so such a site has that of all together."""
    return torch.stack([_whitening(own if len(own) > 1 else torch.cat(residuals)) for own in residuals])


def _whitening(residuals: Tensor) -> Tensor:
    """A matrix that makes the shrunk covariance of residuals [n, d] the identity."""
    scatter = residuals.std(dim=0, correction=0)
    scatter = scatter.clamp_min(max(float(scatter.max()) * 1e-6, 1e-12))  # what never varies must not decide everything
    values, vectors = torch.linalg.eigh(shrunk_covariance(residuals / scatter))
    whitening: Tensor = vectors * values.clamp_min(float(values.max()) * 1e-6).rsqrt() / scatter[:, None]
    return whitening


def shrunk_covariance(values: Tensor) -> Tensor:
    """The covariance of values [n, d] around zero, drawn to a multiple of the identity as far as noise explains it.

    Ledoit and Wolf, A well-conditioned estimator for large-dimensional covariance matrices, 2004, section 3.2:
    `spread` is their d², `noise` their b̄².
    """
    number, size = values.shape
    sample = values.T @ values / number
    level = sample.diagonal().mean()
    target = level * torch.eye(size, dtype=values.dtype)
    spread = (sample - target).square().sum() / size
    noise = (values.square().sum(dim=1).square().mean() - sample.square().sum()) / (size * number)
    share = float(torch.minimum(noise, spread) / spread) if spread > 0 else 0.0
    return share * target + (1.0 - share) * sample
