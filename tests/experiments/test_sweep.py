"""Sweeps that are killed, stopped or fail in part: what is done stays done, the rest goes on."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from protolith.cli.main import main
from protolith.cli.sweep_progress import STILL, SweepLines, SweepLive, fitting, labels, overall
from protolith.errors import UserError
from protolith.experiments import sweep
from protolith.experiments.render import render
from protolith.experiments.sweep import Outcome, Standing, SweepJob, SweepObserver, job_name, run_sweep, state
from protolith.experiments.table import build_tables
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.run import Run
from protolith.runs.runner import Observer
from protolith.use.text import span

needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="looks for processes in /proc")

ODD = """
import os, signal
from dataclasses import replace
from protolith.methods import fedavg

class Client(fedavg.Client):
    def update(self):
        if self.context.run_seed == 1:
            raise ValueError("one does not work")
        if self.context.run_seed == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        return super().update()

METHOD = replace(fedavg.METHOD, name="odd", title="Odd", client=Client)
"""


LAMED = """
from dataclasses import replace
from protolith.methods import fedavg

class Client(fedavg.Client):
    def start(self):
        super().start()
        self.rate *= {scale}

METHOD = replace(fedavg.METHOD, name="lamed", title="Lamed", client=Client)
"""


@pytest.fixture
def small(tiny):
    """Settings of a job that takes a moment; how it is spread over cores is the sweep's business."""
    protocol = {"clients": {"pen": 1, "photo": 1}, "samples": 16}
    return {**{key: value for key, value in tiny.items() if key != "workers"}, "rounds": 2, "protocol": protocol}


@pytest.fixture
def quick(small):
    """The same with tiny test sets."""
    return {**small, "protocol": {**small["protocol"], "name": "local"}}


@pytest.fixture
def odd(tmp_path):
    """A method of one's own that raises with seed 1 and takes its process down with seed 2."""
    path = tmp_path / "odd.py"
    path.write_text(ODD)
    return str(path)


@pytest.fixture
def lamed(tmp_path):
    """A method of one's own in a file, whose learning rate can be edited."""

    def write(scale, path=tmp_path / "lamed.py"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(LAMED.format(scale=scale))
        return str(path)

    return write


class Notes(SweepObserver):
    def __init__(self):
        self.started_jobs = []

    def started(self, job, standing):
        self.started_jobs.append(job.name)


def wait_until(condition, seconds):
    until = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < until, "waited in vain"
        time.sleep(0.02)


def processes():
    """Every process that is not a zombie: its parent and its command."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                command = (folder / "cmdline").read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            if fields[0] != "Z":
                found[int(folder.name)] = (int(fields[1]), command)
    return found


def job_processes(out):
    return [
        pid
        for pid, (_, command) in processes().items()
        if "protolith.experiments.job" in command and any(part.startswith(str(out)) for part in command)
    ]


def descendants(pid):
    every = processes()
    found, fresh = set(), {pid}
    while fresh:
        fresh = {child for child, (parent, _) in every.items() if parent in fresh} - found
        found |= fresh
    return found


@pytest.fixture
def start_sweep(tmp_path):
    """Start `protolith sweep` as a shell would, with its output in files; none outlives its test."""
    started = []

    def start(*arguments):
        with (tmp_path / "stdout").open("w") as out, (tmp_path / "stderr").open("w") as err:
            process = subprocess.Popen(
                [sys.executable, "-m", "protolith", "sweep", *map(str, arguments)],
                stdout=out,
                stderr=err,
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
            )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.wait()


def write_config(path, settings):
    path.write_text(
        f'task = "mini"\nrounds = {settings["rounds"]}\n[model]\nwidth = 4\n[training]\nepochs = 1\nbatch = 16\n'
        f'[protocol]\nname = "{settings["protocol"].get("name", "shift")}"\nsamples = 16\n'
        "clients = {pen = 1, photo = 1}\n"
    )
    return path


SUMMARY = {
    "method": "fedavg", "task": "mini", "protocol": "shift", "seed": 0, "rounds": 2,
    "rule": "", "accuracy": {}, "mean": 0.0,
}  # fmt: skip


def test_states(tmp_path):
    path = tmp_path / "job"
    assert state(path) == "new"
    sweep.write_failure(path, "no data")
    assert state(path) == "failed" and sweep.failure(path) == "no data"
    (path / "failed.json").unlink()
    assert state(path) == "new"
    (path / "config.toml").touch()
    assert state(path) == "stopped"
    directory = RunDirectory.open(path)
    with directory.lock():
        assert state(path) == "running"
    assert state(path) == "stopped"
    sweep.write_failure(path, "no luck")
    assert state(path) == "failed"
    (path / "summary.json").write_text(json.dumps(SUMMARY))
    assert state(path) == "done"


def test_looking_does_not_change_a_directory(tmp_path):
    state(tmp_path / "nothing")
    assert list(tmp_path.iterdir()) == []


def test_a_job_is_named_after_what_could_change_its_result(small):
    config = resolve([small])
    elsewhere = {"workers": 3, "device": "cpu", "data": "/elsewhere", "checkpoint_every": 5}
    assert job_name(config.model_copy(update=elsewhere)) == job_name(config)
    others = [{"rounds": 3}, {"seed": 1}, {"method": "fpl"}, {"size": 48}, {"training": {"lr": 0.5}}]
    assert len({job_name(resolve([small, other])) for other in [{}, *others]}) == 1 + len(others)


@pytest.mark.parametrize(
    ("then", "named"),
    [({"params": {"tau": 0.03}}, "params.tau = 0.03"), ({"training": {"momentum": 0.5}}, "training.momentum = 0.5")],
)
def test_a_run_from_before_a_default_changed_is_not_taken_for_todays(small, tmp_path, then, named):
    config = resolve([small, {"method": "fpl"}])
    path = tmp_path / job_name(config)
    runner.start(resolve([small, {"method": "fpl", "rounds": 1, "workers": 0}, then]), path, Observer())
    text = (path / "config.toml").read_text()
    (path / "config.toml").write_text(text.replace("rounds = 1\n", f"rounds = {config.rounds}\n"))
    with pytest.raises(UserError, match=f"{named}, the default then; it is .* now. Move that run away"):
        run_sweep([config], tmp_path, SweepObserver())


@pytest.mark.parametrize(
    ("number", "settings", "jobs", "cores", "at_once", "workers"),
    [
        (12, {}, None, 2, 2, 0),
        (12, {}, None, 8, 8, 0),
        (3, {}, None, 8, 3, 2),
        (1, {}, None, 8, 1, -1),
        (1, {}, None, 1, 1, 0),
        (12, {}, 1, 2, 1, -1),
        (12, {}, 4, 8, 4, 2),
        (12, {}, 99, 2, 2, 0),
        (12, {"workers": 2}, None, 8, 1, 2),
        (12, {"workers": 2}, 99, 8, 4, 2),
        (12, {"workers": 0}, None, 8, 1, 0),
        (12, {"workers": 0}, 4, 8, 4, 0),
        (12, {"workers": 4}, 2, 2, 1, 4),
        (12, {"device": "cuda"}, None, 8, 1, -1),
        (12, {"device": "cuda"}, 2, 8, 2, 4),
    ],
)
def test_jobs_share_the_cores(small, number, settings, jobs, cores, at_once, workers):
    configs = [resolve([small, {"device": "cpu"}, settings])] * number
    assert sweep.how_many_at_once(configs, jobs, cores) == at_once
    assert sweep.workers_for(configs[0], at_once, cores) == workers


def test_no_jobs_at_a_time_are_refused(small, tmp_path):
    with pytest.raises(UserError, match="--jobs 0"):
        run_sweep([resolve([small])], tmp_path / "s", SweepObserver(), jobs=0)


@needs_proc
def test_each_configuration_once_and_never_too_many_at_a_time(quick, tmp_path):
    """Duplicates are run once, finished runs of which only the small files are left are not run again."""
    out, notes, seen = tmp_path / "s", Notes(), []
    configs = [resolve([quick, {"seed": seed, "rounds": 1}]) for seed in range(4)]
    done = out / job_name(configs[1])
    runner.start(configs[1].model_copy(update={"workers": 0}), done, Observer())
    for name in ("checkpoint", "memory"):
        shutil.rmtree(done / name)
    (done / "model.safetensors").unlink()
    before = (done / "summary.json").stat().st_mtime_ns
    over = threading.Event()

    def count():
        while not over.wait(0.03):
            seen.append(len(job_processes(out)))

    counter = threading.Thread(target=count, daemon=True)
    counter.start()
    again = configs[0].model_copy(update={"workers": 0})
    outcomes = run_sweep([*configs, again, configs[3]], out, notes, jobs=2)
    over.set()
    counter.join()
    assert outcomes == [Outcome(config, out / job_name(config), "done") for config in configs]
    assert notes.started_jobs == [job_name(configs[index]) for index in (0, 2, 3)]
    assert (done / "summary.json").stat().st_mtime_ns == before
    assert max(seen) == min(2, sweep.cores()) and job_processes(out) == []
    # How the sweep spread the work is not written down as if the user had asked for it.
    assert RunDirectory.open(outcomes[0].path).config().workers == -1
    assert "done: accuracy" in sweep.log_file(outcomes[0].path).read_text()


@needs_proc
@pytest.mark.slow
def test_killed_twice_gives_the_table_of_a_sweep_that_was_not(quick, tmp_path, start_sweep):
    methods, seeds, out = ["fedavg", "fedprox", "fpl"], range(4), tmp_path / "s"
    settings = {**quick, "rounds": 3}
    config = write_config(tmp_path / "c.toml", settings)
    arguments = ["--config", config, "--methods", ",".join(methods), "--seeds", "0,1,2,3", "--out", out]
    for finished in (1, 5):
        process = start_sweep(*arguments)

        def in_the_middle(finished=finished):
            states = [state(path) for path in out.glob("*/")]
            begun = [path for path in out.glob("*/metrics.jsonl") if path.stat().st_size]
            return states.count("done") >= finished and len(begun) > states.count("done")

        wait_until(in_the_middle, 240)
        family = descendants(process.pid)
        assert job_processes(out)
        process.kill()
        assert process.wait(10) == -signal.SIGKILL
        wait_until(lambda family=family: not family & processes().keys() and not job_processes(out), 10)
        assert len(list(out.glob("*/summary.json"))) < 12
        assert not list(out.glob("*/failed.json"))
    process = start_sweep(*arguments)
    assert process.wait(300) == 0, (tmp_path / "stderr").read_text()
    whole = []
    for seed in seeds:
        for method in methods:
            layer = {"method": method, "seed": seed, "workers": 0}
            whole.append(runner.start(resolve([settings, layer]), tmp_path / f"{method}{seed}", Observer()))
    assert (tmp_path / "stdout").read_text() == render(build_tables([Run(run.path) for run in whole]), "text")
    assert "12 of 12 done" in (tmp_path / "stderr").read_text()


def test_failing_jobs_are_named_after_the_table_of_the_others(quick, odd, tmp_path, monkeypatch, capsys):
    out = tmp_path / "s"
    config = write_config(tmp_path / "c.toml", {**quick, "rounds": 1})
    arguments = ["--config", config, "--methods", "odd", "--seeds", "0,1,2", "--plugin", odd, "--out", out]
    monkeypatch.setattr(sys, "argv", ["protolith", "sweep", *map(str, arguments)])
    with pytest.raises(SystemExit) as left:
        main()
    captured = capsys.readouterr()
    assert left.value.code == 1
    assert "Odd" in captured.out and "2 run(s) not finished" in captured.out
    assert "Traceback" not in captured.err
    last = captured.err.splitlines()[-3:]
    assert last[0] == "protolith: 2 of 3 jobs failed:"
    assert "odd-seed1" in last[1] and "ValueError: one does not work" in last[1]
    assert "odd-seed2" in last[2] and "its process ended by signal 9" in last[2]
    assert "in update" in next(out.glob("odd-seed1-*.log")).read_text()  # where it happened
    assert sorted(map(state, out.glob("*/"))) == ["done", "failed", "failed"]


def test_a_wrong_request_fails_alone_and_may_be_put_right(quick, tmp_path):
    out, sites = tmp_path / "s", tmp_path / "sites"
    wrong = resolve([quick, {"task": str(sites), "protocol": {"clients": {}}, "rounds": 1}])
    configs = [wrong, resolve([quick, {"rounds": 1}])]
    outcomes = run_sweep(configs, out, SweepObserver(), jobs=1)
    assert [outcome.state for outcome in outcomes] == ["failed", "done"]
    assert str(sites) in outcomes[0].error and "does not exist" in outcomes[0].error
    # Unless it is told to, a sweep does not try again what failed.
    notes = Notes()
    assert run_sweep(configs, out, notes, retry_failed=False) == outcomes
    assert notes.started_jobs == []
    # The failure has left nothing that stands in the way of a new attempt, nor has a start that was killed.
    (out / job_name(wrong) / ".config.toml.123").touch()
    again = run_sweep([wrong], out, notes)[0]
    assert notes.started_jobs == [job_name(wrong)] and again.error == outcomes[0].error


def test_a_job_killed_from_outside_is_done_by_the_next_sweep(small, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "LOOK", 0.05)
    config = resolve([small, {"rounds": 12}])

    class Kill(SweepObserver):
        def moved(self, standing):
            for job in standing.jobs:  # after two rounds there is a checkpoint: it is written after the metrics
                if job.process and job.rounds >= 2:
                    job.process.send_signal(signal.SIGKILL)

    (outcome,) = run_sweep([config], tmp_path / "s", Kill(), jobs=1)
    assert (outcome.state, outcome.error) == ("failed", "its process ended by signal 9")
    assert state(outcome.path) == "failed" and sweep.failure(outcome.path) == outcome.error
    rounds = len(RunDirectory.open(outcome.path).metrics())
    assert 2 <= rounds < 12
    before = sweep.log_file(outcome.path).read_text()
    (outcome,) = run_sweep([config], tmp_path / "s", SweepObserver(), jobs=1)
    assert (outcome.state, outcome.error) == ("done", "")
    assert not (outcome.path / "failed.json").exists()
    again = sweep.log_file(outcome.path).read_text().removeprefix(before)
    assert f"rounds {rounds} to 12" in again or f"rounds {rounds + 1} to 12" in again


def test_a_job_that_another_process_holds(quick, tmp_path, monkeypatch):
    monkeypatch.setattr(sweep, "PATIENCE", 1.0)
    config = resolve([quick, {"rounds": 1}])
    path = tmp_path / "s" / job_name(config)
    held = RunDirectory.create(path, config)
    with held.lock():
        began = time.monotonic()
        (outcome,) = run_sweep([config], tmp_path / "s", SweepObserver())
        assert 1.0 < time.monotonic() - began < 5.0
        assert outcome.state == "failed"
        assert outcome.error.startswith(f"another process is working on it (process {os.getpid()} on ")
        assert not (path / "failed.json").exists()


def test_rounds_that_another_process_ran_in_the_meantime_are_not_counted_as_run_here(quick, tmp_path, monkeypatch):
    config = resolve([quick, {"rounds": 4}])
    job = SweepJob(config, tmp_path / job_name(config))
    job.path.mkdir()
    (job.path / "metrics.jsonl").write_text('{"mean": 1.0}\n{"mean": 2.0}\n')
    monkeypatch.setattr(sweep.sys, "executable", shutil.which("true"))
    job.start(0)
    assert (job.rounds, job.rounds_here) == (2, 0)
    job.kill()


def test_a_job_whose_last_process_is_just_ending_is_waited_for(quick, tmp_path):
    config = resolve([quick, {"rounds": 1}])
    path = tmp_path / "s" / job_name(config)
    other = contextlib.ExitStack()
    other.enter_context(RunDirectory.create(path, config.model_copy(update={"data": "/gone"})).lock())

    class Release(Notes):
        def moved(self, standing):
            assert self.started_jobs or state(path) == "running"
            other.close()

    (outcome,) = run_sweep([config], tmp_path / "s", Release())
    assert outcome.state == "done"
    assert RunDirectory.open(path).config().data == ""  # this sweep's word on where the data are


@needs_proc
def test_ctrl_c_leaves_jobs_that_go_on(small, tmp_path, start_sweep):
    out = tmp_path / "s"
    config = write_config(tmp_path / "c.toml", {**small, "rounds": 6})
    arguments = ["--config", config, "--methods", "fedavg", "--seeds", "0,1", "--out", out, "--workers", 2]
    process = start_sweep(*arguments, "--set", "checkpoint_every=6")
    wait_until(lambda: any(file.stat().st_size for file in out.glob("*/metrics.jsonl")), 120)
    family = descendants(process.pid)
    assert len(family) >= 3  # the job and its two workers
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 130
    said = (tmp_path / "stderr").read_text()
    assert "protolith: stopped with 0 of 2 jobs done; the same command goes on" in said and "Traceback" not in said
    wait_until(lambda: not family & processes().keys() and not job_processes(out), 10)
    assert [state(path) for path in out.glob("*/")] == ["stopped"]
    assert list(out.glob("*/checkpoint/round-*"))
    process = start_sweep(*arguments, "--jobs", 2)
    assert process.wait(240) == 0, (tmp_path / "stderr").read_text()
    assert [state(path) for path in out.glob("*/")] == ["done", "done"]


def test_what_is_said_about_a_sweep(small, tmp_path, capsys):
    path = tmp_path / "fedavg-seed0-0"
    path.mkdir()
    (path / "metrics.jsonl").write_text('{"mean": 40.0}\n{"mean": 44.5}\n{"me')
    job = SweepJob(resolve([small]), path)
    assert (job.rounds, job.accuracy, job.rounds_here) == (2, 44.5, 0)
    (path / "metrics.jsonl").write_text('{"mean": 40.0}\n')  # resumed from the checkpoint before
    job.look()
    assert (job.rounds, job.rounds_here) == (1, 0)
    (path / "summary.json").write_text(json.dumps({**SUMMARY, "mean": 43.21}))
    job.state = "done"
    job.look()
    assert (job.rounds, job.accuracy, job.rounds_here) == (2, 43.21, 1)
    others = [
        SweepJob(resolve([{**small, "method": name}]), tmp_path / name) for name in ("fpl", "moon", "solo", "copa")
    ]
    standing = Standing([job, *others], done=2, failed=1, seconds_left=240.0)
    assert overall(standing) == "2 of 5 done, 1 failed, 2 to do, about 4 min left"
    assert [span(5), span(119), span(7100), span(7200)] == ["5 s", "119 s", "118 min", "2 h"]
    for observer in (SweepLines(), SweepLive()):
        observer.began(standing, 2)
        observer.started(job, standing)
        observer.moved(standing)
        observer.ended(job, Standing([job, *others], 3, 1, None))
        observer.close()
        said = capsys.readouterr().err
        assert "3 of 5 done, 1 failed, 1 to do" in said
        if isinstance(observer, SweepLive):  # one row for each method, in the order of the sweep
            rows = [line.split()[0] for line in said.splitlines() if "/2" in line][-5:]
            assert rows == ["FedAvg", "FPL", "MOON", "SOLO", "COPA"]
            assert [line.split()[1:4] for line in said.splitlines() if "FedAvg" in line][-1] == ["2/2", "43.2", "done"]
        else:
            assert "FedAvg done, mean accuracy 43.21" in said


def test_jobs_are_called_by_what_tells_them_apart(small, tmp_path):
    def job(name, **settings):
        return SweepJob(resolve([{**small, **settings}]), tmp_path / name)

    assert labels([job("a"), job("b", method="fpl")]) == {"a": "FedAvg", "b": "FPL"}
    assert labels([job("a"), job("b", seed=1)]) == {"a": "FedAvg seed 0", "b": "FedAvg seed 1"}
    alike = [job("a"), job("b", training={"lr": 0.5}), job("c", method="fpl")]
    assert labels(alike) == {"a": "a", "b": "b", "c": "FPL"}


def test_a_long_sweep_shows_the_jobs_at_work(small, tmp_path):
    jobs = [SweepJob(resolve([{**small, "seed": seed}]), tmp_path / str(seed)) for seed in range(40)]
    jobs[37].state = "running"
    shown = [int(job.name) for job in fitting(jobs)]
    assert len(shown) == STILL and 37 in shown and shown == sorted(shown)


def test_the_time_left_of_a_job_follows_its_rounds_here(small, tmp_path):
    path = tmp_path / "job"
    path.mkdir()
    (path / "metrics.jsonl").write_text('{"mean": 40.0}\n' * 2)
    job = SweepJob(resolve([{**small, "rounds": 10}]), path)
    assert job.seconds_left is None  # two rounds, but none of them here
    job._began = time.monotonic() - 8.0
    (path / "metrics.jsonl").write_text('{"mean": 40.0}\n' * 4)
    job.look()
    assert 23 < job.seconds_left < 26  # six rounds at four seconds


def test_a_new_option_at_its_default_renames_no_job(small):
    plain = resolve([{**small, "method": "i2pfl"}])
    older = plain.model_copy(update={"params": {name: v for name, v in plain.params.items() if name != "cap"}})
    assert "cap" in plain.params and job_name(older) == job_name(plain)
    assert job_name(resolve([{**small, "method": "i2pfl", "params": {"cap": 2.0}}])) != job_name(plain)


def test_an_edited_plug_in_is_run_again_and_a_moved_one_is_not(quick, lamed, tmp_path):
    def swept(plugin):
        layer = {"method": "lamed", "plugins": [plugin]}
        (outcome,) = run_sweep([resolve([quick, layer])], tmp_path / "s", notes := Notes())
        assert outcome.state == "done", outcome.error
        return outcome.path, len(notes.started_jobs), RunDirectory.open(outcome.path).metrics()[-1].loss["ce"]

    first, ran, loss = swept(lamed(1.0))
    assert ran == 1 and swept(lamed(1.0)) == (first, 0, loss)
    edited, ran, other = swept(lamed(0.0))
    assert edited != first and ran == 1 and other != loss
    assert swept(lamed(1.0, tmp_path / "elsewhere" / "lamed.py")) == (first, 0, loss)
    runs = [Run.open(path) for path in (first, edited)]
    held = [run.summary.plugins["lamed.py"] for run in runs]
    assert held[0] != held[1]
    (table,) = build_tables(runs)
    assert [row.label for row in table.rows] == [f"Lamed, lamed.py={one} †" for one in sorted(held)]
    (line,) = [line for line in table.footer if "lamed.py" in line]
    assert line == f"runs of different code: lamed.py {' and '.join(sorted(held))}"
    assert [row.label for row in build_tables(runs[:1])[0].rows] == ["Lamed †"]


def test_a_plug_in_that_is_edited_while_a_sweep_runs_is_not_mistaken_for_the_one_before(quick, lamed, tmp_path):
    configs = [resolve([quick, {"method": "lamed", "plugins": [lamed(1.0)], "seed": seed}]) for seed in (0, 1)]

    class Edit(SweepObserver):
        def ended(self, job, standing):
            lamed(0.5)

    outcomes = run_sweep(configs, tmp_path / "s", Edit(), jobs=1)
    assert [outcome.state for outcome in outcomes] == ["done", "failed"]
    assert "a plug-in was edited since the sweep began" in outcomes[1].error


def test_a_module_is_hashed_by_its_source(quick, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(tmp_path))
    names = []
    for number in range(2):
        folder = tmp_path / f"mine{number}"
        folder.mkdir()
        (folder / "__init__.py").write_text("from .inner import METHOD\n")
        (folder / "inner.py").write_text(LAMED.format(scale=number))
        names.append(job_name(resolve([quick, {"method": "lamed", "plugins": [folder.name]}])))
    (tmp_path / "mine2").mkdir()
    for file in (tmp_path / "mine0").glob("*.py"):
        shutil.copy(file, tmp_path / "mine2")
    names.append(job_name(resolve([quick, {"method": "lamed", "plugins": ["mine2"]}])))
    assert names[0] != names[1] and names[0] == names[2]


def test_a_job_without_plug_ins_keeps_its_name(small):
    """As in the directories of sweeps that were run before plug-ins were hashed."""
    assert job_name(resolve([small])) == "fedavg-seed0-a00aad95a0"
