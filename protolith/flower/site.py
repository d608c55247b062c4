"""A site's half: its own images, its own disk, and the work that the server asks for."""

import re
import traceback
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from protolith import records
from protolith.data.domain import Task
from protolith.data.sources.decode import PLAIN, Fit
from protolith.data.tasks import load_site
from protolith.engines.messages import sentence, whole
from protolith.errors import UserError
from protolith.evaluation.accuracy import by_test, chunks
from protolith.evaluation.measures import to_plain
from protolith.federation.frozen import trained_on
from protolith.federation.local_update import Workplace, present_device
from protolith.federation.setup import ModelSettings, Setup
from protolith.files import refusal
from protolith.flower.wire import Reply, Request, SiteFacts, hollow_task
from protolith.models.backbones import is_backbone, is_offline, open_backbone
from protolith.records import BadRecord, Broadcast, Record

ROUNDS = 1_000_000_000  # far more than a run has


@dataclass(frozen=True)
class Site:
    """A site: its name, the folder of its images, and a folder of its own for what it has to remember."""

    name: str
    data: Path
    state: Path

    def answer(self, request: Request) -> Reply:
        """Do what the server asks; whatever goes wrong becomes one sentence."""
        try:
            if request.site != self.name:
                raise UserError(f"this is site '{self.name}', and the request is for '{request.site}'.")
            if request.about["kind"] == "hello":
                return Reply(self.name)
            if request.about["kind"] == "describe":
                about = request.about
                present_device(str(about.get("device", "auto")))  # before the images are read, and before any round
                chosen = self._model(about.get("model", {}), about["size"])
                facts = self.facts(about["task"], tuple(about["classes"]), about["size"], about["skip_bad"], chosen.fit)
                if not about.get("by_class", True):
                    facts = replace(facts, per_class=())
                return Reply(self.name, {"facts": facts.plain()})
            return self._work(request)
        except UserError as error:
            return Reply(self.name, error=str(error))
        except OSError as error:
            return Reply(self.name, error=f"its disk says: {refusal(error) or error}")
        except Exception as error:
            traceback.print_exc()
            return Reply(self.name, error=f"{type(error).__name__}: {error}")

    def _model(self, said: Any, size: int) -> ModelSettings:
        """The network of a run; a backbone's weights must be here, and the same as the server's."""
        chosen = ModelSettings.model_validate(said)
        if chosen.weights or not is_offline(chosen.name):  # a server must not choose what a site opens or downloads
            raise UserError(f"site '{self.name}' takes a backbone's weights from their package only.")
        if is_backbone(chosen.name):
            open_backbone(chosen.name, size=size, sha256=chosen.sha256)
        return chosen

    def facts(
        self, task: str, classes: tuple[str, ...], size: int, skip_bad: bool = False, fit: Fit = PLAIN
    ) -> SiteFacts:
        """Count the images, by the given classes or by the site's own; the server learns nothing else of them."""
        own = self.load(task, classes, size, skip_bad, fit)
        train, test = own.domains[0].train, own.domains[0].test
        return SiteFacts(
            self.name, len(train), len(test), own.classes, tuple(train.counts(len(own.classes))), own.notes
        )

    def load(self, task: str, classes: tuple[str, ...], size: int, skip_bad: bool = False, fit: Fit = PLAIN) -> Task:
        """Load the site's images by the rules of the task: one of ours, or images of one's own."""
        if not self.data.is_dir():
            raise UserError(f"site '{self.name}': the folder of images '{self.data}' does not exist.")
        return load_site(self.name, self.data, task, classes, size, self._decoded, skip_bad, fit)

    @property
    def _decoded(self) -> Path:
        return self.state / "decoded"

    def _work(self, request: Request) -> Reply:
        """Test the weights that were sent, or train, or both."""
        place = self._workplace(request.about)
        about: dict[str, Any] = {}
        answers: dict[str, Record] = {}
        if request.about["tested"]:
            weights, knowledge = _tested(request)
            about["counts"] = self._counts(place, weights, knowledge)
        if job := request.about.get("job"):
            broadcast = Broadcast(request.records["weights"], request.records["knowledge"])
            client, round_ = whole(job["client"], len(place.allocation.clients) - 1), whole(job["round"], ROUNDS)
            memory = SiteMemory(self.state / "memory" / _plain_id(request.about["run"]), client)
            held = memory.read(job["memory"] if job["memory"] == -1 else whole(job["memory"], ROUNDS))
            upload, remembered = place.update(client, round_, broadcast, held)
            memory.write(whole(job["writes"], ROUNDS), remembered, [whole(other, ROUNDS) for other in job["keep"]])
            about |= {"count": upload.count, "metrics": upload.metrics, "remembered": bool(remembered)}
            if place.setup.privacy.noise > 0:
                about["releases"] = memory.count_release()
            answers = {"weights": upload.weights, "knowledge": upload.knowledge}
        return Reply(self.name, about, answers)

    def _workplace(self, about: dict[str, Any]) -> Workplace:
        setup = Setup.model_validate(about["setup"])
        if setup.attack.kind != "none":
            raise UserError(f"site '{self.name}' simulates no attack: that is for simulations.")
        if setup.plugins:  # a server must not choose what a site imports
            raise UserError(f"site '{self.name}' loads no plugins: install a package with an entry point instead.")
        classes, (train, test) = tuple(about["classes"]), about["images"]
        fit = self._model(setup.model, setup.size).fit
        own = self.load(setup.task, classes, setup.size, setup.skip_bad, fit)
        domain = trained_on(setup, own, print, self._decoded).domains[0]
        if (len(domain.train), len(domain.test)) != (train, test):
            raise UserError(
                f"site '{self.name}' has {len(domain.train)} training and {len(domain.test)} test images, but had "
                f"{train} and {test} when the run began."
            )
        # The others are there for their places in the order; what they hold is not known here and does not matter.
        sites = [SiteFacts(name, train, test, classes) for name in about["sites"]]
        return Workplace(setup, hollow_task(setup.task, sites, setup.size, domain), at_site=True)

    def _counts(self, place: Workplace, weights: Record, knowledge: Record) -> dict[str, Any]:
        """What is counted on the site's own test sets, which are the only ones whose images are here."""
        tests = place.allocation.tests
        pieces = [piece for piece in chunks(tests) if tests[piece.test].domain == self.name]
        found = by_test(tests, pieces, (place.count(weights, knowledge, piece) for piece in pieces))
        return {test.name: to_plain(found[test.name]) for test in tests if test.domain == self.name}


@dataclass(frozen=True)
class SiteMemory:
    """A client's memory on the site's disk, one file for each round that may still be needed."""

    folder: Path
    client: int

    def read(self, round_: int) -> Record:
        """Read the memory that a round, counted from 1, wrote; -1 is a client's first round."""
        if round_ < 0:
            return {}
        try:
            return records.clone(records.read(self._file(round_)))
        except (OSError, BadRecord):
            raise UserError(f"the memory of round {round_} is not on the site's disk ({self._file(round_)}).") from None

    def write(self, round_: int, memory: Record, keep: list[int]) -> None:
        """Write a round's memory; remove those that no checkpoint of the server needs."""
        if not memory:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        records.write(self._file(round_), memory, sync=True)
        needed = {self._file(other) for other in (*keep, round_)}
        for file in self.folder.glob(f"client-{self.client:05d}-*.safetensors"):
            if file not in needed:
                file.unlink(missing_ok=True)

    def count_release(self) -> int:
        """Count that prototypes leave the site: each time with new noise, also when a round is asked for again."""
        self.folder.mkdir(parents=True, exist_ok=True)
        file = self.folder / f"releases-{self.client:05d}.safetensors"
        before = int(records.read(file)["count"]) if file.exists() else 0
        records.write(file, {"count": torch.tensor(before + 1)}, sync=True)
        return before + 1

    def _file(self, round_: int) -> Path:
        return self.folder / f"client-{self.client:05d}-round-{round_:06d}.safetensors"


def _plain_id(run: str) -> str:
    """Make sure that a run's id, which becomes the name of a folder, is one."""
    if not isinstance(run, str) or not re.fullmatch("[0-9a-f]{32}", run):
        raise UserError(f"'{sentence(run)}' is not the id of a run.")
    return run


def _tested(request: Request) -> tuple[Record, Record]:
    """The weights to test: those sent for it, or else the broadcast's."""
    own = request.about["tested"] == "own"
    names = ("tested-weights", "tested-knowledge") if own else ("weights", "knowledge")
    return request.records[names[0]], request.records[names[1]]
