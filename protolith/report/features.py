"""What a trained network makes of test images: features by class and domain, kept beside the run."""

import contextlib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from torch import Tensor, nn

from protolith import records
from protolith.data.domain import Task
from protolith.data.protocols import select
from protolith.errors import UserError, unknown
from protolith.evaluation.sample import draw as draw
from protolith.federation.local_update import choose_device, one_thread
from protolith.files import file_name
from protolith.models import Network
from protolith.models.passes import answers
from protolith.models.spec import see
from protolith.prototypes import CLUSTERS, GLOBAL
from protolith.prototypes import PrototypeSet as PrototypeSet
from protolith.records import BadRecord, Record, under_prefix
from protolith.runs.directory import MODEL
from protolith.runs.run import Run
from protolith.seeds import generator

LEAST_POINTS = 4  # of a t-SNE


@dataclass(frozen=True)
class Features:
    """Features [n, d] of test images, with the class, the domain and the row of each.

    `domains` are places in `domain_names`. A row is counted as in a test set: a domain's training images first,
    then its test images. The prototypes are those that the model's method ended with: `prototypes` are the
    global ones, one a class, and `clusters` are those of methods with several a class.
    """

    features: Tensor
    labels: Tensor
    domains: Tensor
    rows: Tensor
    domain_names: tuple[str, ...]
    class_names: tuple[str, ...]
    prototypes: PrototypeSet | None = None
    clusters: PrototypeSet | None = None

    def __len__(self) -> int:
        return len(self.labels)

    def only(self, domains: Sequence[str]) -> "Features":
        """The part that comes from these domains, in their order; the prototypes stay."""
        for name in domains:
            if name not in self.domain_names:
                raise unknown("domain", name, self.domain_names)
        found = [torch.nonzero(self.domains == self.domain_names.index(name)).flatten() for name in domains]
        chosen = torch.cat([torch.empty(0, dtype=torch.int64), *found])
        return replace(
            self,
            features=self.features[chosen],
            labels=self.labels[chosen],
            domains=torch.repeat_interleave(torch.tensor([len(part) for part in found], dtype=torch.int64)),
            rows=self.rows[chosen],
            domain_names=tuple(domains),
        )


def collect_features(
    run: Run,
    model_file: Path | None = None,
    domains: Sequence[str] | None = None,
    limit: int = 500,
    seed: int = 0,
) -> Features:
    """Pass at most `limit` test images of each domain through a model of a finished run.

    The model is the global one unless a file is given (`models/pen-1.safetensors`). The images are drawn with
    `seed`, not with the run's, so that they are the same for all methods. What was computed is kept in the
    run's directory, and a second call reads it.
    """
    if limit < 1:
        raise UserError(f"limit = {limit}: at least 1 image of each domain is needed.")
    file = _file(run, model_file)
    place = run.path / "features" / f"{file.stem}-{limit}.safetensors"
    with file.open("rb") as opened:
        origin = {"model": hashlib.file_digest(opened, "sha256").hexdigest(), "limit": limit, "seed": seed}
    found = _saved(place, origin)
    if found is None:
        found = _computed(run, file, limit, seed)
        with contextlib.suppress(OSError, SafetensorError):  # a directory that may only be read has figures too
            place.parent.mkdir(exist_ok=True)
            write_features(place, found, origin)
    return found if domains is None else found.only(domains)


def client_models(run: Run) -> dict[str, Path]:
    """The model of each domain's first client that has one, by the client's name; empty where none was kept."""
    found: dict[str, Path] = {}
    for domain, clients in run.config.protocol.clients.items():
        names = [f"{domain}{mark}-{index + 1}" for index in range(clients) for mark in ("", "*")]
        files = {name: run.path / "models" / f"{file_name(name)}.safetensors" for name in names}
        if first := next((name for name, file in files.items() if file.is_file()), None):
            found[first] = files[first]
    return found


def write_features(path: Path, features: Features, origin: dict[str, object]) -> None:
    """Write features as a record; `origin` says what they were computed from."""
    record: Record = {name: getattr(features, name) for name in ("features", "labels", "domains", "rows")}
    for name in ("prototypes", "clusters"):
        if (held := getattr(features, name)) is not None:
            record |= {f"{name}/vectors": held.vectors, f"{name}/labels": held.labels}
    about = {"origin": origin, "domains": list(features.domain_names), "classes": list(features.class_names)}
    records.write(path, record, about=about)


def read_features(path: Path) -> Features:
    """Read features that were written."""
    record, about = records.read_with_about(path)
    return Features(
        record["features"],
        record["labels"],
        record["domains"],
        record["rows"],
        tuple(about["domains"]),
        tuple(about["classes"]),
        *(
            PrototypeSet(**held) if (held := under_prefix(name, record)) else None
            for name in ("prototypes", "clusters")
        ),
    )


@dataclass(frozen=True)
class Embedding:
    """Where t-SNE puts features and prototypes: [n, 2] each."""

    points: Tensor
    prototypes: Tensor
    clusters: Tensor


def embed(features: Features, seed: int = 0) -> Embedding:
    """Embed features and prototypes together by t-SNE, from a start by PCA.

    The features go in as the network gives them, neither normalised nor standardised: their distances are those
    that the methods' losses see.
    """
    from sklearn.manifold import TSNE  # takes seconds to import
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    sets = [features.features, *(held.vectors for held in (features.prototypes, features.clusters) if held)]
    together = torch.cat(sets)
    if len(together) < LEAST_POINTS:
        raise UserError(f"t-SNE of {len(together)} points: at least {LEAST_POINTS} are needed; raise the limit.")
    if not bool(torch.isfinite(together).all()):
        raise UserError("t-SNE needs finite features, and some of these are not: the training has diverged.")
    start = "pca" if bool((together != together[0]).any()) else "random"  # a collapsed network has no axes
    perplexity = min(30.0, max(1.0, (len(together) - 1) / 3))
    with threadpool_limits(1):  # for so few points threads wait more than they work
        found = TSNE(init=start, perplexity=perplexity, random_state=seed).fit_transform(together.numpy())
    lengths = [len(features), *(len(held.labels) if held else 0 for held in (features.prototypes, features.clusters))]
    return Embedding(*torch.split(torch.from_numpy(found), lengths))


def _file(run: Run, given: Path | None) -> Path:
    file = given if given is not None and given.exists() else run.path / (given or MODEL)
    if file.is_file():
        return file
    if given is None and (run.path / "models").is_dir():
        raise UserError(f"{run.path} has no {MODEL}, only the clients' own models: name one of those in models/.")
    raise UserError(f"{file} does not exist: features need the model of a finished run.")


def _saved(path: Path, origin: dict[str, object]) -> Features | None:
    """What was computed earlier from the same model with the same draw."""
    try:
        return read_features(path) if records.read_about(path).get("origin") == origin else None
    except (FileNotFoundError, BadRecord, KeyError):
        return None


def _computed(run: Run, file: Path, limit: int, seed: int) -> Features:
    task = run.task()
    model, knowledge = _model(run, file, task)
    device = choose_device("auto")
    model.to(device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    names, features, labels, rows = [], [], [], []
    for name, tested in _test_rows(run).items():
        domain = task.by_name[name]
        chosen = tested[draw(select(domain, tested).labels, limit, generator(seed, "features", name))]
        split = select(domain, chosen)
        names.append(name)
        features.append(_encode(model, split.images))
        labels.append(split.labels)
        rows.append(chosen)
    width = features[0].shape[1]
    return Features(
        torch.cat(features),
        torch.cat(labels),
        torch.repeat_interleave(torch.tensor([len(part) for part in rows])),
        torch.cat(rows),
        tuple(names),
        task.classes,
        _of_width(PrototypeSet.from_record(knowledge, GLOBAL), width),
        _of_width(PrototypeSet.from_record(knowledge, CLUSTERS), width),
    )


def _model(run: Run, file: Path, task: Task) -> tuple[nn.Module, Record]:
    """The network in a file, in evaluation mode, and its method's knowledge."""
    held = run.saved_model(file)
    if held.classes != task.classes:
        known, now = (", ".join(classes) for classes in (held.classes, task.classes))
        raise UserError(f"{file} knows the classes {known}, but task {task.name} now has {now}.")
    return held.model, held.knowledge


def _test_rows(run: Run) -> dict[str, Tensor]:
    """The rows that a run is tested on, by domain; the clients' own test parts of a domain are put together."""
    found: dict[str, list[Tensor]] = {}
    for test in run.allocation.tests:
        found.setdefault(test.domain, []).append(test.rows)
    return {domain: torch.cat(parts).sort().values for domain, parts in found.items()}


def _encode(model: nn.Module, images: Tensor) -> Tensor:
    network = cast(Network, model)
    with one_thread():
        return torch.cat(list(answers(model, images, lambda batch: network.features(see(model, batch)).float().cpu())))


def _of_width(held: PrototypeSet | None, width: int) -> PrototypeSet | None:
    """Prototypes that live in the space of the features; others cannot be drawn among them."""
    if held is None or held.vectors.ndim != 2 or len(held.labels) == 0 or held.vectors.shape[1] != width:
        return None
    return PrototypeSet(held.vectors.float(), held.labels.to(torch.int64))
