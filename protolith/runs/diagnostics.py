"""What a run saves for its report: what it made of test images, and the prototypes that clients sent.

`diagnostics/tests.safetensors` is written once, after the last round: for a bounded draw of test images the label,
the prediction and its confidence, features of some of them, and thumbnails of what a report shows.
`diagnostics/prototypes-000001.safetensors` and so on hold the clients' prototypes of a bounded number of rounds, and
`diagnostics/shown-000001.safetensors` and so on the clusters, weights and styles that the server used in them.
"""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeGuard, cast

import torch
from torch import Tensor

from protolith import files, records
from protolith.data.domain import Task
from protolith.data.protocols import Allocation, TestSet, select
from protolith.evaluation.sample import draw
from protolith.federation.coordinator import Coordinator, Metrics
from protolith.federation.hooks import Hook
from protolith.federation.local_update import Workplace
from protolith.losses import class_means
from protolith.methods.base import Roster
from protolith.methods.shown import Shown
from protolith.models import Network
from protolith.models.passes import answers
from protolith.models.saved import load_weights
from protolith.models.spec import see
from protolith.prototypes import CLUSTERS, GLOBAL, SENT, SENT_SEVERAL, PrototypeSet
from protolith.records import BadRecord, Record, Upload, under_prefix
from protolith.seeds import generator

FOLDER = "diagnostics"
TESTS = "tests.safetensors"
PREDICTED = 2000  # test images of a domain whose predictions are saved
SAMPLED = 100  # of these, whose features are saved
MISTAKES = 16  # wrong ones of a domain, the most confident, whose thumbnails are saved
THUMBNAIL = 40  # pixels
ROUNDS, BYTES = 12, 24_000_000  # of saved prototypes, at most (but the first and the last round always)
KNOWLEDGE = (GLOBAL, CLUSTERS)  # of the server, saved beside the clients'


class PrototypeLog(Hook):
    """Writes down the prototypes that clients send in some rounds, and what the server made of them."""

    def __init__(self, folder: Path, allocation: Allocation, classes: tuple[str, ...], roster: Roster) -> None:
        self.folder = folder
        self.roster = roster
        self.about = {
            "clients": [client.name for client in allocation.clients],
            "domains": [client.domain for client in allocation.clients],
            "classes": list(classes),
        }
        size = 4 * len(allocation.clients) * roster.classes * roster.features
        self.step = math.ceil(roster.rounds / max(2, min(ROUNDS, BYTES // size)))
        self.heard: dict[int, Record] = {}
        self.uploads = 0  # of the round that is under way, where it is kept

    def keeps(self, round_: int) -> bool:
        """Tell whether a round is written down: the first, the last, and some between them."""
        return round_ % self.step == 0 or round_ == self.roster.rounds - 1

    def sent(self, round_: int, upload: Upload) -> None:
        """Take note of an upload."""
        if not self.keeps(round_):
            return
        self.uploads += 1
        if SENT.vectors in upload.knowledge and (found := self._by_class(upload.knowledge)):
            self.heard[upload.client] = found

    def _by_class(self, knowledge: Record) -> Record:
        """One prototype for each class [K, d] with its count [K], also where a client sends several.

        Nothing where that cannot be told: a method of somebody's own may send what it likes.
        """
        prototypes, counts = knowledge[SENT.vectors].float(), knowledge.get(SENT.beside)
        if counts is None and self._are_labels(labels := knowledge.get(SENT_SEVERAL.beside), prototypes):
            prototypes, counts = class_means(prototypes, labels, self.roster.classes)
        shape = (self.roster.classes, self.roster.features)
        if counts is None or (prototypes.shape, counts.shape) != (shape, shape[:1]):
            return {}
        style = {"style": knowledge["style"]} if "style" in knowledge else {}
        return {SENT.vectors: prototypes, SENT.beside: counts, **style}

    def _are_labels(self, labels: Tensor | None, prototypes: Tensor) -> TypeGuard[Tensor]:
        """Tell whether these are the classes of so many vectors."""
        if labels is None or labels.dtype != torch.int64 or prototypes.dim() != 2:
            return False
        inside = bool(((labels >= 0) & (labels < self.roster.classes)).all())
        return labels.shape == prototypes.shape[:1] and inside

    def round_done(self, metrics: Metrics, coordinator: Coordinator) -> None:
        """Write what came of a round."""
        self.write(metrics["round"] - 1, coordinator.server.knowledge, coordinator.shown())

    def write(self, round_: int, knowledge: Record, shown: Shown) -> None:
        """Write what was heard in a round, and what the server made of it."""
        heard, self.heard = self.heard, {}
        uploads, self.uploads = self.uploads, 0
        if heard:
            self._write(f"prototypes-{round_ + 1:06d}", self._prototypes(heard, knowledge))
        if uploads and (made := shown.record()):
            self._write(f"shown-{round_ + 1:06d}", made)

    def _prototypes(self, heard: Mapping[int, Record], knowledge: Record) -> Record:
        clients = sorted(heard)
        sent = {name: [heard[client].get(name) for client in clients] for name in heard[clients[0]]}
        record = {name: torch.stack(tensors) for name, tensors in sent.items() if _alike(tensors)}
        record["clients"] = torch.tensor(clients)
        return record | {
            f"server/{name}": knowledge[name]
            for form in KNOWLEDGE
            for name in (form.vectors, form.beside)
            if name in knowledge
        }

    def _write(self, name: str, record: Record) -> None:
        self.folder.mkdir(exist_ok=True)
        records.write(self.folder / f"{name}.safetensors", record, about=self.about)


def _alike(tensors: Sequence[Tensor | None]) -> TypeGuard[list[Tensor]]:
    """Tell whether every client sent this, and in one shape."""
    return len({None if tensor is None else tensor.shape for tensor in tensors}) == 1 and tensors[0] is not None


@dataclass(frozen=True)
class Prototypes:
    """The prototypes of one round: [M, K, d] and counts [M, K] of the clients that sent some."""

    round: int  # counted from 1
    record: Record
    clients: list[str]  # the M clients' names, and where they live
    domains: list[str]
    classes: list[str]
    everyone: list[tuple[str, str]]  # names and domains of all clients of the run

    @property
    def vectors(self) -> Tensor:
        """The vectors [M, K, d]; zeros for classes that a client lacks."""
        return self.record[SENT.vectors]

    @property
    def counts(self) -> Tensor:
        """The images behind them [M, K]."""
        return self.record[SENT.beside]

    @property
    def server(self) -> PrototypeSet | None:
        """What the server had after the round, one for each class or clusters; None where it had none."""
        return PrototypeSet.from_record(under_prefix("server", self.record), GLOBAL, CLUSTERS)

    @property
    def clusters(self) -> PrototypeSet | None:
        """The server's clusters after the round, where it had some."""
        return PrototypeSet.from_record(under_prefix("server", self.record), CLUSTERS)


def read_prototypes(run: Path) -> list[Prototypes]:
    """The rounds whose prototypes a run has saved; a file that cannot be read is left out."""
    found = []
    for file in sorted((run / FOLDER).glob("prototypes-*.safetensors")):
        with contextlib.suppress(OSError, BadRecord, LookupError, ValueError):
            record, about = records.read_with_about(file)
            everyone = list(zip(about["clients"], about["domains"], strict=True))
            held = [everyone[client] for client in record["clients"].tolist()]
            names, domains = [name for name, _ in held], [domain for _, domain in held]
            found.append(Prototypes(int(file.stem[-6:]), record, names, domains, about["classes"], everyone))
    return found


@dataclass(frozen=True)
class Made:
    """What a server made of the uploads of a round."""

    round: int  # counted from 1
    shown: Shown
    classes: list[str]
    everyone: list[tuple[str, str]]  # names and domains of all clients of the run


def read_shown(run: Path) -> list[Made]:
    """The rounds of which a run has saved what its server made; a file that cannot be read is left out."""
    found = []
    for file in sorted((run / FOLDER).glob("shown-*.safetensors")):
        with contextlib.suppress(OSError, BadRecord, LookupError, ValueError):
            record, about = records.read_with_about(file)
            everyone = list(zip(about["clients"], about["domains"], strict=True))
            found.append(Made(int(file.stem[-6:]), Shown.of(record), about["classes"], everyone))
    return found


@dataclass(frozen=True)
class Tests:
    """Test images as a finished run sees them. `domain` is a place in `domains`; `row` counts as in a test set."""

    __test__ = False  # not one of pytest's

    label: Tensor
    predicted: Tensor
    confidence: Tensor
    domain: Tensor
    row: Tensor
    sampled: Tensor  # the images that have features, as places in the five tensors above
    features: Tensor
    shown: Tensor  # the images that have a thumbnail
    thumbnails: Tensor
    domains: list[str]
    classes: list[str]
    of: str  # whose predictions these are
    features_of: str
    images: int  # in all test sets; as many as labels, unless they were too many


def read_tests(run: Path) -> Tests | None:
    """What a run has saved about test images; None where it has not."""
    try:
        record, about = records.read_with_about(run / FOLDER / TESTS)
        held: dict[str, Any] = {**record, **about}
        return Tests(**held)
    except (OSError, BadRecord, TypeError):
        return None


class TestLog(Hook):
    """Saves what the report shows of the test images, in the end; a run does not fail for want of it."""

    __test__ = False  # not one of pytest's

    def __init__(self, run: Path, workplace: Workplace, say: Callable[[str], None]) -> None:
        self.run = run
        self.workplace = workplace
        self.say = say

    def finished(self, coordinator: Coordinator) -> None:
        """Pass the test images through what the run ended with."""
        try:
            write_tests(self.run, self.workplace, coordinator)
        except (OSError, BadRecord) as error:
            if isinstance(error, OSError) and files.refusal(error):  # resuming makes up for it
                raise
            self.say(f"predictions for the report are not saved: {error}")


def write_tests(run: Path, workplace: Workplace, coordinator: Coordinator) -> None:
    """Pass test images through what the run ended with, and save what came out."""
    model = _Model(workplace, coordinator)
    domains = list(dict.fromkeys(test.domain for test in workplace.allocation.tests))
    parts = [model.look_at(test, domains.index(test.domain)) for test in workplace.allocation.tests]
    whole = {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
    sampled = whole.pop("sampled").nonzero().flatten()
    shown = torch.unique(torch.cat([sampled, _mistakes(whole, len(domains))]))
    features, features_of = model.features(whole, sampled, domains)
    record = {**whole, "sampled": sampled, "features": features, "shown": shown}
    record["thumbnails"] = torch.cat(
        [_small(image) for image in model.pixels(whole, shown, domains, workplace.pictures)]
    )
    about = {
        "domains": domains,
        "classes": list(workplace.task.classes),
        "of": model.of,
        "features_of": features_of,
        "images": sum(len(test.rows) for test in workplace.allocation.tests),
    }
    (run / FOLDER).mkdir(exist_ok=True)
    records.write(run / FOLDER / TESTS, record, about=about)


def _mistakes(whole: Record, domains: int) -> Tensor:
    """Places of the most confident mistakes of every domain."""
    wrong = whole["predicted"] != whole["label"]
    found = []
    for domain in range(domains):
        places = (wrong & (whole["domain"] == domain)).nonzero().flatten()
        order = torch.argsort(whole["confidence"][places].float(), descending=True, stable=True)
        found.append(places[order[:MISTAKES]])
    return torch.cat(found)


def _small(images: Tensor) -> Tensor:
    """Images [n, h, w, 3] at the size of a thumbnail; small ones stay as they are."""
    side = images.shape[1]
    if side <= THUMBNAIL:
        return images
    floats = images.permute(0, 3, 1, 2).float()
    small = torch.nn.functional.interpolate(floats, size=THUMBNAIL, mode="bilinear", antialias=True)
    return small.round().clamp(0, 255).to(torch.uint8).permute(0, 2, 3, 1).contiguous()


class _Model:
    """The resident model with the weights that belong to a test set: the global ones, or a client's own."""

    def __init__(self, workplace: Workplace, coordinator: Coordinator) -> None:
        self.place = workplace
        self.coordinator = coordinator
        self.is_global = coordinator.tested == "global"
        self.of = "the global model" if self.is_global else "the clients' own models, each on its own domain"
        self.loaded: int | None = None
        self.knowledge: Record = {}

    def look_at(self, test: TestSet, domain: int) -> Record:
        """Predict a bounded draw of a test set."""
        self._load(-1 if self.is_global else self._owner(test))
        alike = sum(other.domain == test.domain for other in self.place.allocation.tests)
        rows, rng = test.rows.sort().values, ("features", test.name)
        labels = select(self.place.task.by_name[test.domain], rows).labels
        chosen = draw(labels, math.ceil(PREDICTED / alike), generator(0, *rng))
        sampled = draw(labels, math.ceil(SAMPLED / alike), generator(0, *rng))
        split = select(self.place.task.by_name[test.domain], rows[chosen])
        confidence, predicted = torch.cat(list(self._shares(split.images))).max(dim=1)
        return {
            "label": split.labels.to(torch.int16),
            "predicted": predicted.to(torch.int16),
            "confidence": confidence.half(),
            "domain": torch.full_like(predicted, domain, dtype=torch.int16),
            "row": rows[chosen].to(torch.int32),
            "sampled": torch.isin(chosen, sampled),
        }

    def features(self, whole: Record, places: Tensor, domains: list[str]) -> tuple[Tensor, str]:
        """Features of some images, all by one network: the global one, or the first client's."""
        has_global = self.coordinator.server.evaluates == "global"
        self._load(-1 if has_global else 0)
        model, found = self.place.model, list[Tensor]()
        network = cast(Network, model)
        for images in self.pixels(whole, places, domains):
            found += answers(model, images, lambda batch: network.features(see(model, batch)).half().cpu())
        name = self.place.allocation.clients[0].name
        return torch.cat(found), "the global model" if has_global else f"the model of client {name}"

    def pixels(self, whole: Record, places: Tensor, domains: list[str], task: Task | None = None) -> Iterator[Tensor]:
        """What the network is shown at some places, test set by test set, in their order; or another task's images."""
        domain, row = whole["domain"][places], whole["row"][places].to(torch.int64)
        ends = [*(torch.nonzero((domain.diff() != 0) | (row.diff() < 0)).flatten() + 1).tolist(), len(places)]
        for start, stop in zip([0, *ends], ends, strict=False):
            held = (task or self.place.task).by_name[domains[int(domain[start])]]
            yield select(held, row[start:stop]).images

    def _shares(self, images: Tensor) -> Iterator[Tensor]:
        model, predict = self.place.model, self.place.method.predict
        knowledge = {name: tensor.to(self.place.device) for name, tensor in self.knowledge.items()}

        def shares(batch: Tensor) -> Tensor:
            return predict(model, see(model, batch), knowledge).float().softmax(dim=1).cpu()

        return answers(model, images, shares)

    def _owner(self, test: TestSet) -> int:
        """The client whose model is tested: the set's owner, or the first of its domain, or the first of all."""
        clients = self.place.allocation.clients
        at_home = [client.id for client in clients if client.domain == test.domain]
        return test.owner if test.owner is not None else (at_home or [0])[0]

    def _load(self, client: int) -> None:
        if client == self.loaded:
            return
        server = self.coordinator.server
        weights, self.knowledge = server.weights, server.knowledge
        if client >= 0:
            self.knowledge = self.coordinator.broadcast(client).knowledge
            weights = self._own_weights(client)
        load_weights(self.place.model, weights)
        self.place.model.eval()
        self.loaded = client

    def _own_weights(self, client: int) -> Record:
        if self.coordinator.tested == "aggregated":
            return self.coordinator.own_weights(client)
        return records.read(self.coordinator.model_file(client))
