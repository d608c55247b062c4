"""A deployment: its files, what it refuses, and one real federation on loopback with TLS and keys."""

import contextlib
import os
import signal
import stat
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from PIL import Image

from protolith import records
from protolith.data.tasks import load_task
from protolith.errors import RunFailed, UserError
from protolith.flower import layout, processes, submit
from protolith.flower.check import inspect
from protolith.flower.commands import environment
from protolith.flower.note import RunNote
from protolith.flower.plan import Deployment
from protolith.runs import runner
from protolith.runs.config import resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.round import Round
from protolith.runs.runner import Interrupted, Observer

INSTALLED = (Path(sys.executable).parent / "flower-superlink").exists()
needs_flower = pytest.mark.skipif(not INSTALLED, reason="Flower is not installed (pip install 'protolith[flower]')")
SITES = ["pen", "print"]


@pytest.fixture
def images(tmp_path):
    task = load_task("mini")
    for name in SITES:
        domain = task.by_name[name].train
        for label, label_name in enumerate(task.classes):
            folder = tmp_path / "images" / name / label_name
            folder.mkdir(parents=True)
            for number in torch.nonzero(domain.labels == label).flatten()[:4].tolist():
                Image.fromarray(domain.images[number].numpy()).save(folder / f"{number:05d}.png")
    return tmp_path / "images"


@needs_flower
def test_init_makes_everything_and_keeps_keys_private(tmp_path):
    from cryptography import x509

    made = layout.create(tmp_path / "d", ["a", "b", "c"], "server.example.org", 9092)
    keys = [made.path / "authority" / "ca.key", made.server / "server.key", *made.path.glob("sites/*/site.key")]
    assert len(keys) == 5 and all(stat.S_IMODE(key.stat().st_mode) == 0o600 for key in keys)
    certificate = x509.load_pem_x509_certificate((made.server / "server.crt").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == ["server.example.org", "localhost"]
    certificate.verify_directly_issued_by(x509.load_pem_x509_certificate((made.server / "ca.crt").read_bytes()))
    assert made.plan.quorum == 2 and made.plan.sites == ["a", "b", "c"]
    for site in made.plan.sites:
        files = {file.name for file in made.site(site).iterdir()}
        assert files == {"README.md", "ca.crt", "site.key", "start.sh"}
        script = (made.site(site) / "start.sh").read_text()
        assert "FLWR_TELEMETRY_ENABLED=0" in script and str(tmp_path) not in script
        assert "./start.sh FOLDER" in (made.site(site) / "README.md").read_text()
    assert "--method strata --model efficientnet-lite0 " in (made.path / "README.md").read_text()
    with pytest.raises(UserError, match="not empty"):
        layout.create(tmp_path / "d", ["a"], "localhost", 9092)


@pytest.mark.parametrize(
    ("sites", "host", "reason"),
    [
        (["a", "a"], "localhost", "same name"),
        (["a/b"], "localhost", "'a/b' is not a name"),
        ([], "localhost", "at least one"),
        (["a"], "host:80", "without a port"),
    ],
)
def test_init_refuses_names_that_cannot_be(tmp_path, sites, host, reason):
    with pytest.raises(UserError, match=reason):
        layout.create(tmp_path / "d", sites, host, 9092)
    assert not (tmp_path / "d").exists()


def some_deployment(path) -> Deployment:
    path.mkdir()
    (path / "deployment.toml").write_text('name = "some"\nsites = ["a", "b"]\nport = 1\n')
    return Deployment.open(path)


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"deployment": ""}, "needs --deployment"),
        ({"protocol": {"name": "local"}}, "protocol 'local'"),
        ({"protocol": {"clients": {"a": 2, "b": 1}}}, "a site is one client"),
        ({"method": "solo"}, "tests the global model"),
        ({}, "does not run here"),
    ],
)
def test_a_run_that_cannot_work_is_refused_before_anything_is_written(tmp_path, settings, reason):
    deployment = some_deployment(tmp_path / "d")
    config = resolve([deployment.settings(), {"model": {"width": 4}}, settings])
    with pytest.raises(UserError, match=reason):
        submit.start(config, tmp_path / "run", Observer())
    assert not (tmp_path / "run").exists()


def test_such_a_run_is_never_executed_on_this_machine_by_mistake(tmp_path):
    config = resolve([some_deployment(tmp_path / "d").settings()])
    with pytest.raises(UserError, match="--deployment"):
        runner.start(config, tmp_path / "run", Observer())


def test_a_quorum_of_more_sites_than_there_are_is_refused(tmp_path):
    deployment = some_deployment(tmp_path / "d")
    (deployment.path / "deployment.toml").write_text('name = "some"\nsites = ["a"]\nquorum = 2\n')
    with pytest.raises(UserError, match="quorum = 2"):
        Deployment.open(deployment.path).plan  # noqa: B018


def test_processes_are_ended_by_number_and_only_if_they_are_still_the_same(tmp_path):
    deployment = some_deployment(tmp_path / "d")
    deployment.state.mkdir(parents=True)
    noted = processes.Processes(deployment)
    pid = noted.start("sleeper", ["/bin/sleep", "60"], os.environ, tmp_path / "log", tmp_path)
    assert noted.running() == {"sleeper": pid}
    assert noted.end("sleeper") and noted.running() == {} and not noted.end("sleeper")
    noted.file.write_text(f'{{"stranger": [{os.getpid()}, 12345]}}')  # our number, but not our beginning
    assert noted.running() == {} and not noted.end("stranger")


def test_a_run_that_another_process_works_on_is_waited_for_and_then_refused(tmp_path, monkeypatch):
    deployment = some_deployment(tmp_path / "d")
    run = RunDirectory.create(tmp_path / "run", resolve([deployment.settings()]))
    other = subprocess.Popen(["/bin/sleep", "60"])
    (run.path / "flower.json").write_text(f'{{"pid": {other.pid}}}')
    monkeypatch.setattr(submit, "_refuse_absent", lambda deployment: None)  # no server is needed for this
    monkeypatch.setattr(submit, "RELEASE_SECONDS", 1.0)
    heard = Breaks()
    try:
        with pytest.raises(UserError, match=f"another process, {other.pid}, .* did not end within 1 s"):
            submit.resume(run.path, heard)
    finally:
        other.kill()
        other.wait()
    assert heard.said == [f"process {other.pid} still works on the run: waiting for its end, up to 1 s"]


def test_a_number_that_another_process_has_now_is_nobody_who_works_on_the_run(tmp_path, monkeypatch):
    """As after a restart of the machine: what is noted is our number, but not our beginning."""
    deployment = some_deployment(tmp_path / "d")
    run = RunDirectory.create(tmp_path / "run", resolve([deployment.settings()]))
    (run.path / "flower.json").write_text(f'{{"pid": {os.getpid()}, "began": 12345}}')

    def begin(*given):
        note = RunNote(run)
        note.begin()
        note.fail("RunFailed", "said by the new process, which has the same number")
        return 1

    monkeypatch.setattr(submit, "_refuse_absent", lambda deployment: None)  # no server is needed for this
    monkeypatch.setattr(submit, "submit", begin)
    for name in ("RELEASE_SECONDS", "START_SECONDS"):
        monkeypatch.setattr(submit, name, 1.0)
    heard = Breaks()
    with pytest.raises(RunFailed, match="said by the new process"):
        submit.resume(run.path, heard)
    assert heard.said == []


def test_whoever_works_on_a_run_is_noted_with_its_beginning(tmp_path):
    run = RunDirectory.create(tmp_path / "run", resolve([some_deployment(tmp_path / "d").settings()]))
    note = RunNote(run)
    assert not note.works()
    note.begin()
    assert RunNote(run).works() and isinstance(note.values["began"], int)
    for values, there in (({"began": 12345}, False), ({"began": None}, True), ({"pid": 2**22 + 1}, False)):
        other = RunNote(run)
        other.values |= values
        assert other.works() == there, values


def try_to_join(deployment: Deployment, options: list[str], home: Path) -> str:
    """Try to join as a site, for as long as it takes to be refused; return what the program said."""
    command = [str(Path(sys.executable).parent / "flower-supernode"), *options]
    command += ["--superlink", f"localhost:{deployment.plan.port}", "--max-retries", "1", "--max-wait-time", "5"]
    command += ["--host", "127.0.0.1", "--port", str(processes.free_port())]
    log = home.with_suffix(".log")
    with log.open("w") as output:
        process = subprocess.Popen(command, env=environment(home), stdout=output, stderr=output, start_new_session=True)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout=20)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return log.read_text()


def strangers(deployment: Deployment, other: Deployment) -> dict[str, list[str]]:
    """Sites that must not come in."""
    ca, key = "--root-certificates", "--auth-supernode-private-key"
    ours, theirs = deployment.site("pen"), other.site("pen")
    return {
        "unregistered key": [ca, str(ours / "ca.crt"), key, str(theirs / "site.key")],
        "plaintext": ["--insecure"],
        "wrong authority": [ca, str(theirs / "ca.crt"), key, str(ours / "site.key")],
    }


@needs_flower
@pytest.mark.slow
def test_a_federation_on_loopback_from_init_to_down(images, tmp_path):
    """Keys and certificates, a check, strangers refused, two rounds with the same numbers as on this machine."""
    deployment = layout.create(tmp_path / "d", SITES, "localhost", processes.free_port())
    other = layout.create(tmp_path / "other", SITES, "localhost", deployment.plan.port)
    small = {"rounds": 2, "model": {"width": 4}, "training": {"epochs": 1, "batch": 16}, "method": "fpl"}
    try:
        processes.start_server(deployment, print)
        for site in SITES:
            processes.start_site(deployment, site, images / site, print)
        for name, options in strangers(deployment, other).items():
            said = try_to_join(deployment, options, tmp_path / name)
            assert "SuperNode ID" not in said, name
            assert "code: 2004" in said or name != "unregistered key"
        run = submit.start(resolve([deployment.settings(), small]), tmp_path / "sites", Observer())
        findings = inspect(deployment, print)
        assert all(finding.good for finding in findings), findings
        assert "pen: 30 training and 10 test images" in findings[-2].what
        assert (deployment.state / "server.log").read_text().count("Activated node_id") == len(SITES)
    finally:
        end(deployment)
    assert processes.Processes(deployment).running() == {}
    assert_as_on_this_machine(run, {**small, "task": str(images)})


def end(deployment: Deployment) -> None:
    """Show what was logged, and end everything that was started."""
    for log in [deployment.state / "server.log", *deployment.path.glob("sites/*/state/site.log")]:
        print(log.read_text()[-2000:] if log.exists() else f"no {log}")
    processes.stop(deployment, print)


def assert_as_on_this_machine(run: RunDirectory, settings: dict[str, object]) -> None:
    """The same run here gives the same weights and accuracies, bit for bit, and no site was ever missing."""
    here = runner.start(resolve([{**settings, "workers": 0}]), run.path.with_name("here"), Observer())
    models = [records.read(path / "model.safetensors") for path in (run.path, here.path)]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    for ours, others in zip(run.metrics(), here.metrics(), strict=True):
        assert ours.accuracy == others.accuracy and ours.missing == ()


class Breaks(Observer):
    """Does something when a round is done, and remembers what was said."""

    def __init__(self, round_: int = -1, act: Callable[[], object] = lambda: None) -> None:
        self.round, self.act, self.said = round_, act, []

    def say(self, text: str) -> None:
        print(text)
        self.said.append(text)

    def round_done(self, metrics: Round) -> None:
        if metrics.round == self.round:
            self.act()


class Freezes(Breaks):
    """Ctrl-C after the first round, with the server's half of the run frozen until somebody waits for its end."""

    def __init__(self, path: Path) -> None:
        super().__init__(1, self.stop)
        self.path, self.held = path, 0

    def stop(self) -> None:
        self.held = RunNote(RunDirectory(self.path)).values["pid"]
        os.kill(self.held, signal.SIGSTOP)
        raise KeyboardInterrupt

    def thaw(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.held, signal.SIGCONT)


class Thaws(Breaks):
    """Lets the server's half of the run before go on as soon as it is waited for, and kills the server later."""

    def __init__(self, frozen: Freezes, kill: Callable[[], object]) -> None:
        super().__init__(2, kill)
        self.frozen = frozen

    def say(self, text: str) -> None:
        super().say(text)
        if "waiting for its end" in text:
            self.frozen.thaw()


@needs_flower
@pytest.mark.slow
def test_a_run_that_was_stopped_and_whose_server_died_ends_as_if_nothing_had_happened(images, tmp_path):
    """Ctrl-C and at once `resume`; then the server is killed, and one site comes back late, with a quorum of one."""
    deployment = layout.create(tmp_path / "d", SITES, "localhost", processes.free_port())
    deployment.write(deployment.plan.model_copy(update={"quorum": 1, "wait": 300.0}))
    deployment = Deployment.open(deployment.path)
    small = {"rounds": 3, "model": {"width": 4}, "training": {"epochs": 1, "batch": 16}, "method": "fedcode"}
    noted = processes.Processes(deployment)
    late = threading.Timer(20, lambda: processes.start_site(deployment, "print", images / "print", print))
    stop, after = Freezes(tmp_path / "run"), Breaks()
    kill = Thaws(stop, lambda: os.kill(noted.running()[processes.SERVER], signal.SIGKILL))
    try:
        processes.start_server(deployment, print)
        for site in SITES:
            processes.start_site(deployment, site, images / site, print)
        with pytest.raises(Interrupted):
            submit.start(resolve([deployment.settings(), small]), tmp_path / "run", stop)
        with pytest.raises(RunFailed, match="the server is gone"):
            submit.resume(tmp_path / "run", kill)
        assert noted.end("print")
        processes.start_server(deployment, print)
        late.start()
        run = submit.resume(tmp_path / "run", after)
    finally:
        if stop.held:
            stop.thaw()
        late.cancel()
        late.join()
        end(deployment)
    assert kill.said[0] == f"process {stop.held} still works on the run: waiting for its end, up to 60 s"
    assert any("waiting for pen, print, up to 300 s" in text for text in after.said)
    assert "all of them are there" in after.said
    assert_as_on_this_machine(run, {**small, "task": str(images)})
