"""Which sites are hard and why: what is confused there, how far their prototypes are from the others', who is alike."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median

import torch
from torch import Tensor

from protolith.data.domain import Task
from protolith.data.protocols import partition_of, select
from protolith.data.sources.found import Progress, listed, silent
from protolith.errors import UserError
from protolith.prototypes import finch
from protolith.runs.run import Run
from protolith.use.familiarity import FALSE_ALARMS, Familiarity, familiarity_of
from protolith.use.text import columns
from protolith.use.trained import Trained, open_trained

CONFUSED = 3  # pairs of classes that are named for a site
FEW = 0.5  # of the median site's training images
FAR = 1.25  # times the median site's distance
PIXELS = 2000  # images of a site whose colours are looked at


@dataclass(frozen=True)
class Confusion:
    """How many test images of one class were taken for another."""

    true: str
    taken_for: str
    count: int
    of: int


@dataclass(frozen=True)
class SiteDiagnosis:
    """What there is to say about a site; `distance` is of its prototypes from the other sites' of the same class."""

    site: str
    accuracy: float
    tested: int
    trained: int
    distance: float | None
    unfamiliar: float
    confusions: tuple[Confusion, ...]
    reasons: tuple[str, ...]


@dataclass(frozen=True)
class Expectation:
    """What sites that nobody trained on got, by site, and the settings in which those runs differ from this one."""

    accuracy: dict[str, float]
    differs: tuple[str, ...]

    @property
    def mean(self) -> float:
        """The mean over the left-out sites."""
        return sum(self.accuracy.values()) / len(self.accuracy)


@dataclass(frozen=True)
class Diagnosis:
    """Everything that `diagnose` found. Distances are in units of the scatter within one class of one site."""

    sites: tuple[SiteDiagnosis, ...]  # the hardest first
    distances: dict[str, dict[str, float]]  # class -> "site – site" -> distance
    alike_by_features: tuple[tuple[str, ...], ...]
    alike_by_colours: tuple[tuple[str, ...], ...]
    expectation: Expectation | None

    def plain(self) -> dict[str, object]:
        """Everything, for other programs."""
        return asdict(self)

    def text(self) -> str:
        """Everything, for people."""
        parts = [self._table(), *map(_about, self.sites), self._distances(), self._groups(), self._new_site()]
        return "\n\n".join(part for part in parts if part)

    def _table(self) -> str:
        rows: list[list[str]] = [["site", "accuracy", "test images", "training images", "distance", "unfamiliar"]]
        for site in self.sites:
            away = "–" if site.distance is None else f"{site.distance:.2f}"
            numbers = [f"{site.accuracy:.1f} %", f"{site.tested:,}", f"{site.trained:,}"]
            rows.append([site.site, *numbers, away, f"{100 * site.unfamiliar:.1f} %"])
        return columns(rows)

    def _distances(self) -> str:
        if not self.distances:
            return ""
        pairs = list(dict.fromkeys(pair for row in self.distances.values() for pair in row))
        rows = [["distance between sites", *self.distances]]
        rows += [
            [pair, *(f"{row[pair]:.2f}" if pair in row else "–" for row in self.distances.values())] for pair in pairs
        ]
        return columns(rows)

    def _groups(self) -> str:
        lines = []
        for what, groups in (("features", self.alike_by_features), ("colours", self.alike_by_colours)):
            if groups:
                lines.append(f"alike by their {what}: " + "; ".join(" + ".join(group) for group in groups))
        return "\n".join(lines)

    def _new_site(self) -> str:
        if self.expectation is None:
            return "what a new site could expect is not known: give runs of protocol unseen with --unseen DIR"
        found = self.expectation
        low, high = (pick(found.accuracy.items(), key=lambda item: item[1]) for pick in (min, max))
        lines = [
            f"a new site could expect about {found.mean:.1f} %: the mean of {len(found.accuracy)} site(s) that were "
            f"left out in turn, from {low[1]:.1f} % ({low[0]}) to {high[1]:.1f} % ({high[0]})"
        ]
        here = {site.site: site.accuracy for site in self.sites}
        for site, value in found.accuracy.items():
            seen = f", and {here[site]:.1f} % in this run" if site in here else ""
            lines.append(f"  {site}: {value:.1f} % when it was left out{seen}")
        if found.differs:
            lines.append(f"  those runs differ from this one in {', '.join(found.differs)}")
        return "\n".join(lines)


def diagnose(run: Run, unseen: Sequence[Run] = (), progress: Progress = silent) -> Diagnosis:
    """Diagnose a finished run whose images are at hand; `unseen` are leave-one-site-out runs."""
    trained = open_trained(run)
    known = familiarity_of(trained, progress)
    task = trained.task()
    between = _between_sites(known)
    sites = _sites(trained, task, known, between)
    return Diagnosis(
        tuple(sorted(sites, key=lambda site: site.accuracy)),
        _by_class(known, between),
        _groups(_site_features(known), known.sites),
        _groups(_site_colours(task, known.sites), known.sites),
        _expectation(trained, unseen),
    )


def _sites(trained: Trained, task: Task, known: Familiarity, between: Tensor) -> list[SiteDiagnosis]:
    tests: dict[str, list[Tensor]] = {}
    for test in trained.run.allocation.tests:
        tests.setdefault(test.domain, []).append(test.rows)
    held = dict(zip(known.sites, known.counts.sum(dim=1).tolist(), strict=True))
    away = _away(known, between)
    found = []
    for name, rows in tests.items():
        split = select(task.by_name[name], torch.cat(rows).sort().values)
        answers = trained.ask(split.images)
        matrix = confusion(split.labels, answers.logits.argmax(dim=1), len(task.classes))
        accuracy = 100.0 * float(matrix.diagonal().sum()) / max(1, len(split))
        strange = float((known.scores(answers.looks) <= FALSE_ALARMS).double().mean())
        confused = _most_confused(matrix, task.classes)
        reasons = _reasons(name, held, away, known, confused)
        numbers = (accuracy, len(split), int(held.get(name, 0)), away.get(name), strange)
        found.append(SiteDiagnosis(name, *numbers, confused, reasons))
    return found


def confusion(labels: Tensor, predicted: Tensor, classes: int) -> Tensor:
    """Count [K, K]: images of class i that were taken for j."""
    return torch.bincount(labels * classes + predicted, minlength=classes**2).view(classes, classes)


def _most_confused(matrix: Tensor, classes: Sequence[str]) -> tuple[Confusion, ...]:
    wrong = matrix.clone().fill_diagonal_(0).flatten()
    order = torch.argsort(wrong, descending=True, stable=True)[:CONFUSED].tolist()
    of = matrix.sum(dim=1).tolist()
    pairs = [(place // len(classes), place % len(classes), int(wrong[place])) for place in order]
    return tuple(Confusion(classes[i], classes[j], count, of[i]) for i, j, count in pairs if count)


def _reasons(
    site: str,
    held: Mapping[str, int],
    away: Mapping[str, float],
    known: Familiarity,
    confused: Sequence[Confusion],
) -> tuple[str, ...]:
    found = []
    if site not in held:
        found.append("nobody trained on its images")
    else:
        usual = median(held.values())
        if held[site] < FEW * usual:
            found.append(f"it has {held[site]:,} training images, the median site {usual:,.0f}")
        counts = known.counts[known.sites.index(site)].tolist()
        if lacks := [name for name, count in zip(known.classes, counts, strict=True) if not count]:
            found.append(f"it has no training image of {listed(lacks)}")
    if site in away and len(away) > 2 and away[site] > FAR * median(away.values()):
        others = median(value for name, value in away.items() if name != site)
        found.append(f"its prototypes are {away[site]:.2f} from the other sites', theirs {others:.2f} (median)")
    found += [f"{c.count} of {c.of} images of '{c.true}' are taken for '{c.taken_for}'" for c in confused]
    return tuple(found)


def _about(site: SiteDiagnosis) -> str:
    return "\n".join([f"{site.site}:", *(f"  {reason}" for reason in site.reasons)]) if site.reasons else ""


def _between_sites(known: Familiarity) -> Tensor:
    """Distances [K, S, S] between the sites' prototypes of each class; NaN where one of the two lacks the class."""
    points = (known.prototypes.double() @ known.whitening).transpose(0, 1)
    distances = torch.cdist(points, points) / points.shape[2] ** 0.5
    present = (known.counts > 0).T
    both = present[:, :, None] & present[:, None, :]
    return torch.where(both, distances, torch.nan)


def _by_class(known: Familiarity, between: Tensor) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for label, name in enumerate(known.classes):
        row = {
            f"{known.sites[a]} – {known.sites[b]}": float(between[label, a, b])
            for a in range(len(known.sites))
            for b in range(a + 1, len(known.sites))
            if not bool(between[label, a, b].isnan())
        }
        if row:
            found[name] = row
    return found


def _away(known: Familiarity, between: Tensor) -> dict[str, float]:
    """Each site's mean distance from the other sites, over classes that both have."""
    count = len(known.sites)
    others = ~torch.eye(count, dtype=torch.bool)
    found = {}
    for place, site in enumerate(known.sites):
        values = between[:, place, others[place]]
        if bool((~values.isnan()).any()):
            found[site] = float(values.nanmean())
    return found


def _site_features(known: Familiarity) -> Tensor:
    """A vector for each site: its prototypes of the classes that all have, less the mean over sites."""
    shared = (known.counts > 0).all(dim=0)
    points = known.prototypes[:, shared].double() @ known.whitening
    return (points - points.mean(dim=0)).flatten(1)


def _site_colours(task: Task, sites: Sequence[str]) -> Tensor:
    """A vector for each site: means and deviations of its colours over training images, compared among the sites."""
    rows = []
    for site in sites:
        images = task.by_name[site].train.images
        chosen = images[:: max(1, len(images) // PIXELS)].flatten(0, 2).double()
        rows.append(torch.cat([chosen.mean(dim=0), chosen.std(dim=0, correction=0)]))
    table = torch.stack(rows)
    return (table - table.mean(dim=0)) / table.std(dim=0, correction=0).clamp_min(1e-9)


def _groups(points: Tensor, sites: Sequence[str]) -> tuple[tuple[str, ...], ...]:
    """Sites by first neighbours (FINCH); nothing for fewer than three, which have no choice."""
    if len(sites) < 3 or points.shape[1] == 0:
        return ()
    labels = finch(points, "first").tolist()
    return tuple(
        tuple(site for site, label in zip(sites, labels, strict=True) if label == group)
        for group in range(max(labels) + 1)
    )


def _expectation(trained: Trained, unseen: Sequence[Run]) -> Expectation | None:
    if not unseen:
        return None
    found: dict[str, list[float]] = {}
    differs: set[str] = set()
    ours = _compared(trained.config.model_dump())
    for run in unseen:
        config, summary = run.config, run.finished
        if not partition_of(config.protocol).unseen:
            raise UserError(f"--unseen {run.path}: its protocol is '{config.protocol.name}', not 'unseen'.")
        if summary is None:
            raise UserError(f"--unseen {run.path}: the run is not finished.")
        theirs = _compared(config.model_dump())
        differs |= {key for key in ours if ours[key] != theirs[key]}
        for site, value in summary.accuracy.items():
            found.setdefault(site, []).append(value)
    means = {site: sum(values) / len(values) for site, values in found.items()}
    return Expectation(means, tuple(sorted(differs)))


def _compared(config: Mapping[str, object]) -> dict[str, object]:
    return {key: config[key] for key in ("method", "task", "size", "rounds", "model", "training", "params")}
