"""Sweeps: many runs, each in a directory named after its configuration; what is done is not done again."""

import contextlib
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from protolith.errors import Interrupted, UserError
from protolith.federation.local_update import choose_device
from protolith.federation.setup import RENAMED
from protolith.files import read_json, write_text
from protolith.machine import cores
from protolith.methods.base import Training
from protolith.methods.registry import get_method, plugin_digest
from protolith.runs.config import RunConfig
from protolith.runs.directory import RunDirectory
from protolith.runs.run import Run
from protolith.runs.runner import refuse_absent_device

State = Literal["new", "running", "stopped", "failed", "done"]

# Where and how a run is executed does not change what comes out.
PLACE = ("workers", "engine", "deployment", "address", "device", "data", "checkpoint_every", "diagnostics")
FILLED_IN = ("protocol.clients", "protocol.samples", "model.sha256", "model.tag")  # from the task, when a run begins
BY_CONTENT = ("plugins",)  # what the name of a job has by its content, wherever it lies
STOPPED = 130  # a job's exit code after Ctrl-C
DISK = 74  # a job's exit code when the disk takes nothing more, so that it can leave no word
NO_ROOM = "its files cannot be written: the disk is full, or may only be read; the same command goes on from there"
TICK = 0.1  # seconds between looks at the processes
LOOK = 1.0  # seconds between looks at their metrics
PATIENCE = 15.0  # seconds for a job that another process holds: perhaps that one is just ending
GOODBYE = 10.0  # seconds that jobs have for a last checkpoint


def job_name(config: RunConfig) -> str:
    """Name a job: readable, and different for every configuration that could give another result.

    Settings at their defaults are left out, so that a setting that is new in a later version renames no job. A plug-in
    stands for its content: one that was edited gives another result, one that was moved does not.
    """
    settings = _dumped(config, exclude_defaults=True)
    if config.plugins:
        settings["plugins"] = [plugin_digest(plugin) for plugin in config.plugins]
    digest = hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:10]
    return f"{config.method}-seed{config.seed}-{digest}"


def job_path(config: RunConfig, out: Path) -> Path:
    """Where a job is, or will be. What is there must be of the same settings: defaults change between versions."""
    path = out / job_name(config)
    if not (path / "config.toml").exists():
        return path
    now, then = _settings(config), _settings(Run(path).config)
    for name, value in now.items():
        if then.get(name) != value:
            sentence = f"{path} was run with {name} = {json.dumps(then.get(name))}, the default then; it is"
            raise UserError(f"{sentence} {json.dumps(value)} now. Move that run away, or give another --out.")
    return path


def _dumped(config: RunConfig, exclude_defaults: bool = False) -> dict[str, object]:
    """Everything that could give another result, the method's options among it."""
    method = get_method(config.method)
    params = method.params.model_validate(config.params)
    settings = config.model_dump(mode="json", exclude={*PLACE, "params"}, exclude_defaults=exclude_defaults)
    found = {**settings, "params": params.model_dump(mode="json", exclude_defaults=exclude_defaults)}
    return with_old_names(found, config, method.settings) if exclude_defaults else found


def with_old_names(settings: dict[str, Any], config: RunConfig, usual: Mapping[str, Any]) -> dict[str, Any]:
    """Settings that have another place since jobs got their names, at the old one, if they are not the method's own."""
    names = RENAMED.get(config.method, {})
    training = {name: held for name, held in settings.get("training", {}).items() if name not in names.values()}
    now = {**Training().model_dump(), **usual.get("training", {})}
    moved = {old: held for old, new in names.items() if (held := getattr(config.training, new)) != now[new]}
    others = {name: held for name, held in settings.items() if name != "training"}
    return {**others, **({"training": training} if training else {}), "params": {**settings["params"], **moved}}


def _settings(config: RunConfig) -> dict[str, object]:
    """The same by dotted name, but for what the task fills in and what the name of the job tells already."""
    found: dict[str, object] = {}
    for section, value in _dumped(config).items():
        found |= {f"{section}.{name}": v for name, v in value.items()} if isinstance(value, dict) else {section: value}
    return {name: value for name, value in found.items() if name not in (*FILLED_IN, *BY_CONTENT)}


def state(path: Path) -> State:
    """How far the job in a directory is."""
    if Run(path).finished is not None:
        return "done"
    if RunDirectory(path).is_locked():
        return "running"
    if (path / "failed.json").exists():
        return "failed"
    return "stopped" if (path / "config.toml").exists() else "new"


def failure(path: Path) -> str:
    """What went wrong in a job's last attempt; empty if nothing did."""
    try:
        return str(read_json(path / "failed.json")["error"])
    except (OSError, ValueError, LookupError):
        return ""


def write_failure(path: Path, sentence: str) -> bool:
    """Leave word of what went wrong; tell whether it could be written."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        write_text(path / "failed.json", json.dumps({"error": sentence}) + "\n")
    except OSError:  # the log may have it
        return False
    return True


def log_file(path: Path) -> Path:
    """Where a job's process writes: next to its directory, which has to be empty for a new run."""
    return path.with_name(f"{path.name}.log")


@dataclass(frozen=True)
class Outcome:
    """What became of one configuration."""

    config: RunConfig
    path: Path
    state: State
    error: str = ""


class SweepInterrupted(Interrupted):
    """The user stopped the sweep; the same command goes on with it."""

    def __init__(self, done: int, total: int) -> None:
        sentence = f"stopped with {done} of {total} jobs done; the same command goes on with the rest."
        Exception.__init__(self, sentence)


class SweepJob:
    """One configuration of a sweep, its directory, its process, and how far it is."""

    def __init__(self, config: RunConfig, path: Path) -> None:
        self.config = config
        self.path = path
        self.state = state(path)
        self.error = failure(path) if self.state == "failed" else ""
        self.rounds = 0
        self.accuracy: float | None = None
        self.process: subprocess.Popen[str] | None = None
        self.held_since: float | None = None
        self._began = 0.0
        self._size = -1
        self._first = 0
        self._look_anew()

    @property
    def name(self) -> str:
        """The name of its directory."""
        return self.path.name

    @property
    def seconds(self) -> float:
        """How long ago its process was started."""
        return time.monotonic() - self._began

    @property
    def rounds_here(self) -> int:
        """The rounds that were run since the sweep began."""
        return self.rounds - self._first

    @property
    def seconds_left(self) -> float | None:
        """How long it will take, judged by the rounds so far; unknown until one was run."""
        return self.seconds / self.rounds_here * (self.config.rounds - self.rounds) if self.rounds_here > 0 else None

    def look(self) -> None:
        """Count the rounds that are done; the file is read only when it has changed."""
        if self.state == "done" and (summary := Run(self.path).finished):
            self.rounds, self.accuracy = self.config.rounds, summary.mean
            return
        file = self.path / "metrics.jsonl"
        with contextlib.suppress(OSError, ValueError):
            size = file.stat().st_size
            if size == self._size:
                return
            self._size = size
            lines = file.read_bytes().split(b"\n")[:-1]
            self.rounds = len(lines)
            self._first = min(self._first, self.rounds)  # a run that is resumed drops what its checkpoint lacks
            if lines:
                self.accuracy = json.loads(lines[-1]).get("mean", self.accuracy)

    def _look_anew(self) -> None:
        """Count the rounds that this sweep finds done."""
        self.look()
        self._first = self.rounds

    def start(self, workers: int) -> None:
        """Start its process."""
        self._look_anew()  # another process may have worked on it since
        (self.path / "failed.json").unlink(missing_ok=True)
        self.state, self.error, self._began = "running", "", time.monotonic()
        with log_file(self.path).open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-u", "-m", "protolith.experiments.job", str(self.path), str(workers)],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C is for the sweep, which then tells its jobs
            )
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):  # it has ended already: its exit code says more
            self.process.stdin.write(json.dumps(self.config.model_dump(mode="json")) + "\n")
            self.process.stdin.flush()  # the pipe stays open: it is the job's life line

    def is_alive(self) -> bool:
        """Tell whether its process is at work."""
        return self.process is not None and self.process.poll() is None

    def ended(self) -> bool:
        """Tell whether its process is over; then the state is what it left behind."""
        if self.process is None or (code := self.process.poll()) is None:
            return False
        self._close()
        self.state = state(self.path)
        if self.state in ("done", "running"):
            pass
        elif code == STOPPED:
            self.error = "it was stopped from outside"
        else:
            self._fail(code)
        self.look()
        return True

    def _fail(self, code: int) -> None:
        if not (sentence := failure(self.path)):
            how = f"by signal {-code}" if code < 0 else f"with code {code}"
            sentence = NO_ROOM if code == DISK else f"its process ended {how}"
            write_failure(self.path, sentence)
        self.state, self.error = "failed", sentence

    def interrupt(self) -> None:
        """Ask its process to write a checkpoint and end."""
        if self.process is not None:
            self.process.send_signal(signal.SIGINT)

    def kill(self) -> None:
        """End its process, whatever it is doing."""
        if self.process is not None:
            self.process.kill()
            self.process.wait()
            self._close()
            self.state = state(self.path)

    def _close(self) -> None:
        if self.process is not None and self.process.stdin is not None:
            with contextlib.suppress(OSError):
                self.process.stdin.close()
        self.process = None


@dataclass(frozen=True)
class Standing:
    """How far a sweep is."""

    jobs: Sequence[SweepJob]
    done: int
    failed: int
    seconds_left: float | None  # unknown until rounds were run

    @property
    def total(self) -> int:
        """All jobs."""
        return len(self.jobs)

    @property
    def left(self) -> int:
        """Jobs that are neither done nor failed."""
        return self.total - self.done - self.failed


class SweepObserver:
    """Who is told how a sweep goes. Every method may be overridden; none has to be."""

    def say(self, text: str) -> None:
        """Hear a sentence."""

    def began(self, standing: Standing, at_once: int) -> None:
        """Hear what there is to do."""

    def started(self, job: SweepJob, standing: Standing) -> None:
        """Hear that a job's process was started."""

    def ended(self, job: SweepJob, standing: Standing) -> None:
        """Hear that a job is done or has failed."""

    def moved(self, standing: Standing) -> None:
        """Hear how far the jobs are, about once a second."""

    def close(self) -> None:
        """Hear that nothing more comes."""


def run_sweep(
    configs: Sequence[RunConfig],
    out: Path,
    observer: SweepObserver,
    jobs: int | None = None,
    retry_failed: bool = True,
) -> list[Outcome]:
    """Run what is not done yet, each job in its own process; a job that fails does not stop the others."""
    distinct: dict[str, RunConfig] = {}
    for config in configs:
        distinct.setdefault(job_name(config), config)
    every = [SweepJob(config, job_path(config, out)) for config in distinct.values()]
    to_do = [job for job in every if job.state != "done" and (retry_failed or job.state != "failed")]
    for job in to_do:
        refuse_absent_device(job.config)
    at_once = how_many_at_once([job.config for job in to_do], jobs, cores())
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"--out {out} cannot be written: {error.strerror}.") from None
    sweep = _Sweep(every, to_do, observer, at_once)
    try:
        sweep.run()
    except KeyboardInterrupt:
        sweep.stop()
        raise SweepInterrupted(sweep.standing().done, len(every)) from None
    finally:
        sweep.kill()
    return [Outcome(job.config, job.path, job.state, job.error) for job in every]


def how_many_at_once(configs: Sequence[RunConfig], jobs: int | None, cores: int) -> int:
    """How many jobs run at the same time: as many as asked for, but never more processes than cores."""
    if jobs is not None and jobs < 1:
        raise UserError(f"--jobs {jobs}: at least one job must run at a time.")
    workers = max((config.workers for config in configs), default=-1)
    if jobs is None:
        on_gpu = any(choose_device(config.device).type != "cpu" for config in configs)
        jobs = 1 if on_gpu or workers >= 0 else cores
    return max(1, min(jobs, len(configs), cores // max(1, workers)))


def workers_for(config: RunConfig, at_once: int, cores: int) -> int:
    """The worker processes of one job: its share of the cores; with one core, it does the work itself."""
    if config.workers >= 0 or (at_once == 1 and cores > 1):
        return config.workers
    return cores // at_once if cores // at_once > 1 else 0


class _Sweep:
    """The jobs of a sweep while they wait, run and end."""

    def __init__(
        self, jobs: Sequence[SweepJob], to_do: Sequence[SweepJob], observer: SweepObserver, at_once: int
    ) -> None:
        self.jobs = jobs
        self.waiting = list(to_do)
        self.running: list[SweepJob] = []
        self.observer = observer
        self.at_once = at_once
        self.cores = cores()
        self.began = self.looked = time.monotonic()

    def run(self) -> None:
        """Start jobs in the given order until none is left."""
        self.observer.began(self.standing(), self.at_once)
        while self.waiting or self.running:
            self._collect()
            self._fill()
            if time.monotonic() - self.looked >= LOOK:
                self._look()
            if self.waiting or self.running:
                time.sleep(TICK)

    def _collect(self) -> None:
        for job in list(self.running):
            if not job.ended():
                continue
            self.running.remove(job)
            if job.state == "running":  # another process was faster
                self.waiting.append(job)
            else:
                self.observer.ended(job, self.standing())

    def _fill(self) -> None:
        for job in list(self.waiting):
            if len(self.running) >= self.at_once:
                return
            found = state(job.path)
            if found == "running" and not self._lost_patience(job):
                continue
            self.waiting.remove(job)
            if found == "done":
                job.state = "done"
                job.look()
                self.observer.ended(job, self.standing())
            elif found == "running":
                job.state, job.error = "failed", f"another process is working on it{RunDirectory(job.path).holder()}"
                self.observer.ended(job, self.standing())
            else:
                self._start(job)

    def _start(self, job: SweepJob) -> None:
        try:
            job.start(workers_for(job.config, self.at_once, self.cores))
        except OSError as error:
            job.state, job.error = "failed", f"its process cannot be started: {error}"
            self.observer.ended(job, self.standing())
        else:
            self.running.append(job)
            self.observer.started(job, self.standing())

    def _lost_patience(self, job: SweepJob) -> bool:
        if job.held_since is None:
            job.held_since = time.monotonic()
        return time.monotonic() - job.held_since > PATIENCE

    def _look(self) -> None:
        for job in self.running:
            job.look()
        self.looked = time.monotonic()
        self.observer.moved(self.standing())

    def standing(self) -> Standing:
        """Count, and judge by the rounds so far how long the rest will take."""
        open_ = [*self.waiting, *self.running]
        done = sum(job.state == "done" for job in self.jobs)
        here = sum(job.rounds_here for job in self.jobs)
        left = sum(job.config.rounds - job.rounds for job in open_)
        seconds = (time.monotonic() - self.began) / here * left if here else None
        return Standing(list(self.jobs), done, len(self.jobs) - len(open_) - done, seconds)

    def stop(self) -> None:
        """Have the running jobs write a checkpoint; a second Ctrl-C does not wait for it."""
        self.observer.say(f"stopping {len(self.running)} job(s)")
        until = time.monotonic() + GOODBYE
        with contextlib.suppress(KeyboardInterrupt):
            for job in self.jobs:
                job.interrupt()
            while time.monotonic() < until and any(job.is_alive() for job in self.jobs):
                time.sleep(TICK)
        self.kill()

    def kill(self) -> None:
        """Leave no process behind."""
        for job in self.jobs:
            job.kill()
        self.running.clear()
