"""Runs at the sites: submit to the server, follow the run directory, end with the same files as any run."""

import contextlib
import json
import time
import uuid
from pathlib import Path
from typing import Any

from protolith.data.protocols import partition_of
from protolith.errors import Interrupted, RunFailed, UserError
from protolith.federation.coordinator import which_models
from protolith.federation.local_update import Workplace
from protolith.files import write_text
from protolith.flower.commands import LINK, flwr, tls_problem
from protolith.flower.layout import APP
from protolith.flower.note import RunNote
from protolith.flower.plan import Deployment
from protolith.flower.processes import SERVER, Processes, end_left_behind
from protolith.flower.wire import SiteFacts, hollow_task
from protolith.runs import runner
from protolith.runs.accounting import refuse_unaccountable
from protolith.runs.config import RunConfig, complete_for
from protolith.runs.directory import RunDirectory
from protolith.runs.round import Round
from protolith.runs.runner import Observer

START_SECONDS = 180.0  # until the server's half of a submission runs
RELEASE_SECONDS = 60.0  # until it has ended
POLL = 0.5


def start(config: RunConfig, out: Path, observer: Observer) -> RunDirectory:
    """Start a new run where its configuration says: on this machine or at the sites."""
    if config.engine != "flower":
        return runner.start(config, out, observer)
    deployment = _deployment(config)
    _refuse_unsuitable(config)
    # Numbers of images are not known yet; clients and samples by site depend on the names alone.
    names = [SiteFacts(site, 100, 100, ("a", "b")) for site in deployment.plan.sites]
    task = hollow_task(config.task, names, config.size)
    config = complete_for(_without_unseen(config), task)
    _refuse_several_clients(config)
    workplace = Workplace(config, task)
    server = workplace.server()
    if (models := which_models(config, server)) != "global":
        raise UserError(
            f"engine = 'flower' tests the global model, and this run would test the sites' own (tested = '{models}')."
        )
    _refuse_absent(deployment)
    directory = RunDirectory.create(out.resolve(), config)
    _submit_and_follow(deployment, directory, observer)
    return directory


def resume(path: Path, observer: Observer, workers: int | None = None, deployment: Path | None = None) -> RunDirectory:
    """Go on with a run that was stopped or killed, wherever it ran."""
    directory = RunDirectory.open(path)
    config = directory.config()
    if config.engine != "flower" or directory.summary():
        return runner.resume(path, observer, workers)
    place = Deployment.open(deployment) if deployment else _deployment(config)
    _refuse_absent(place)
    _wait_for_release(place, directory, observer)
    _submit_and_follow(place, RunDirectory.open(path.resolve()), observer)
    return directory


def _wait_for_release(deployment: Deployment, directory: RunDirectory, observer: Observer) -> None:
    """Wait until the server's half of a submission before is gone; after Ctrl-C that takes some seconds."""
    note, deadline = RunNote(directory), time.monotonic() + RELEASE_SECONDS
    if note.process is None:
        return
    pid, _ = note.process
    if note.works() and not end_left_behind(deployment, pid):
        observer.say(f"process {pid} still works on the run: waiting for its end, up to {RELEASE_SECONDS:.0f} s")
    while note.works():
        if time.monotonic() > deadline:
            raise UserError(
                f"another process, {pid}, is working on the run in {directory.path}, and did not end within "
                f"{RELEASE_SECONDS:.0f} s."
            )
        time.sleep(POLL)


def _deployment(config: RunConfig) -> Deployment:
    if not config.deployment:
        raise UserError("--engine flower needs --deployment DIR, a directory made by `protolith deploy init`.")
    return Deployment.open(Path(config.deployment))


def _refuse_unsuitable(config: RunConfig) -> None:
    refuse_unaccountable(config)
    if config.attack.kind != "none":
        raise UserError("engine = 'flower' trains at real sites: attacks are for simulations (engine local or ray).")
    if config.plugins:
        raise UserError("engine = 'flower' takes no plugins: install a package with an entry point at every site.")
    if config.protocol.validation:
        raise UserError("engine = 'flower' tests on the sites' test images only: set protocol.validation to 0.")
    if partition_of(config.protocol).own:
        raise UserError(
            f"protocol '{config.protocol.name}' is not for engine 'flower': shift, equal, unseen or sites are."
        )


def _without_unseen(config: RunConfig) -> RunConfig:
    """The site that nobody learns from only tests."""
    if not (unseen := partition_of(config.protocol).unseen):
        return config
    clients = {site: count for site, count in config.protocol.clients.items() if site != unseen}
    return config.model_copy(update={"protocol": config.protocol.model_copy(update={"clients": clients})})


def _refuse_several_clients(config: RunConfig) -> None:
    for site, clients in config.protocol.clients.items():
        if clients > 1:
            raise UserError(f"protocol.clients.{site} = {clients}: with engine 'flower' a site is one client.")


def _refuse_absent(deployment: Deployment) -> None:
    problem = tls_problem(deployment, "127.0.0.1")
    if problem or not deployment.nodes:
        raise UserError(
            f"the server of {deployment.path} does not run here ({problem or 'no site is registered'}): start it with "
            f"`protolith deploy up {deployment.path} --server`."
        )


def submit(deployment: Deployment, job: str, directory: Path) -> int:
    """Hand a job to the server; return the number that Flower gives it."""
    _write_app(deployment)
    settings = f"job='{job}' deployment='{deployment.path}' directory='{directory}'"
    answer = flwr(deployment, "run", str(deployment.server / "app"), LINK, "--run-config", settings)
    return int(answer["run-id"])


def _write_app(deployment: Deployment) -> None:
    """Write the app anew: one of an older version may name modules that have moved."""
    path = deployment.server / "app" / "pyproject.toml"
    if path.read_text(encoding="utf-8") != APP:
        write_text(path, APP)


def _submit_and_follow(deployment: Deployment, directory: RunDirectory, observer: Observer) -> None:
    before = RunNote(directory).process
    told = max((line.round for line in directory.metrics()), default=0)
    number = submit(deployment, "train", directory.path)
    observer.started(directory.config(), directory, told, len(deployment.plan.sites))
    try:
        _wait_for_start(deployment, directory, before, number)
        _follow(deployment, directory, observer, told)
    except KeyboardInterrupt:
        with contextlib.suppress(RunFailed):
            flwr(deployment, "stop", str(number), LINK)
        raise Interrupted(directory.path, len(directory.metrics())) from None
    summary = directory.summary()
    assert summary is not None
    observer.finished(summary)


def _wait_for_start(
    deployment: Deployment, directory: RunDirectory, before: tuple[int, int | None] | None, number: int
) -> None:
    """Wait until the server's half has begun; it says so in the run's directory."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if RunNote(directory).process not in (None, before):
            return
        time.sleep(POLL)
    log = deployment.state / "server.log"
    raise RunFailed(f"Flower did not start run {number} within {START_SECONDS:.0f} s; see {log}.")


def _follow(deployment: Deployment, directory: RunDirectory, observer: Observer, told: int) -> None:
    """Pass on the rounds as they are written, until the run is done, has failed, or its process is gone."""
    heard, noted = "", Processes(deployment)
    was_noted = SERVER in noted.running()
    while True:
        note = RunNote(directory)
        said = note.values.get("said", "")
        if said and said != heard:
            observer.say(said)
            heard = said
        alive = note.works()  # looked at first: what it wrote before its end is read after
        for line in directory.metrics():
            if line.round > told:
                told = line.round
                observer.round_done(line)
                _tell_missing(line, observer)
        if directory.summary():
            return
        if failed := RunNote(directory).values.get("failed"):
            raise (UserError if failed["kind"] == "UserError" else RunFailed)(failed["sentence"])
        if was_noted and SERVER not in noted.running():
            end_left_behind(deployment, note.values["pid"])
            raise RunFailed(
                f"the server is gone: start it with `protolith deploy up {deployment.path} --server`, then go on with: "
                f"protolith resume {directory.path}"
            )
        if not alive:
            raise RunFailed(f"the run's server process ended; go on with: protolith resume {directory.path}")
        time.sleep(POLL)


def _tell_missing(line: Round, observer: Observer) -> None:
    for missing in line.missing:
        observer.say(f"round {line.round}: no {missing.phase} at {missing.site}: {missing.reason}")


def ask_sites(deployment: Deployment, seconds: float = START_SECONDS) -> dict[str, dict[str, Any]]:
    """Ask the sites what they have: classes and counts, or what is wrong."""
    target = deployment.state / f"check-{uuid.uuid4().hex}.json"
    submit(deployment, "check", target)
    deadline = time.monotonic() + seconds
    while not target.is_file():
        if time.monotonic() > deadline:
            raise RunFailed(f"the sites were asked, and no answer came within {seconds:.0f} s.")
        time.sleep(POLL)
    answers: dict[str, dict[str, Any]] = json.loads(target.read_text())
    target.unlink()
    return answers
