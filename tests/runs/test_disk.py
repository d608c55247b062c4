"""Full disks, read-only directories, two runs at once, files of a newer version: a sentence each, and nothing lost."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager

import pytest

from protolith import files, records
from protolith.engines import spool
from protolith.errors import DiskRefused, RunFailed, UserError
from protolith.experiments import sweep
from protolith.report.page.build import write_report
from protolith.runs import checkpoints, runner
from protolith.runs.config import resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.runner import Observer


def mount(folder, options):
    folder.mkdir(exist_ok=True)
    return subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)], capture_output=True)


@pytest.fixture
def disk(tmp_path):
    """A small disk, and how to fill it, to free it and to forbid writing to it."""
    folder = tmp_path / "disk"
    if shutil.which("mount") is None or os.geteuid() != 0 or mount(folder, "size=3m").returncode:
        pytest.skip("a small tmpfs cannot be mounted here (it needs root)")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


@contextmanager
def full(folder):
    """Leave no room, not even for a byte."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        try:
            while True:
                file.write(bytes(4096))
        except OSError:
            pass
    yield
    ballast.unlink()


@contextmanager
def read_only(folder):
    subprocess.run(["mount", "-o", "remount,ro", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(folder)], check=True)


def result(path):
    lines = RunDirectory.open(path).metrics()
    plain = [line.model_copy(update={"seconds": {}}) for line in lines]
    models = {file.name: file.read_bytes() for file in [*path.glob("*.safetensors"), *path.glob("models/*")]}
    return plain, models


def parts(path):
    return [file for file in path.rglob(".*") if file.name.endswith(".part") or file.name.startswith(".round-")]


class FillAfter(Observer):
    """Fills the disk after a round; 0: before the first."""

    def __init__(self, folder, round_):
        self.folder, self.round, self.held = folder, round_, None

    def started(self, *_):
        self.look(0)

    def round_done(self, metrics):
        self.look(metrics.round)

    def look(self, round_):
        if round_ == self.round:
            self.held = full(self.folder)
            self.held.__enter__()

    def free(self):
        self.held.__exit__(None, None, None)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    found = {}

    def get(values):
        key = json.dumps(values)
        if key not in found:
            path = tmp_path_factory.mktemp("whole") / "run"
            runner.start(resolve([values]), path, Observer())
            found[key] = result(path)
        return found[key]

    return get


@pytest.mark.parametrize("workers", [0, 1])
def test_a_full_disk_is_one_sentence_and_the_run_goes_on_when_there_is_room(tiny, disk, whole, workers, capfd):
    values = {**tiny, "method": "solo"}
    observer = FillAfter(disk, 1)
    with pytest.raises(DiskRefused, match=r"no space left on device.* go on with: protolith resume"):
        runner.start(resolve([{**values, "workers": workers}]), disk / "run", observer)
    assert parts(disk / "run") == [] and "Traceback" not in capfd.readouterr().err
    assert [folder.name for folder in (disk / "run" / "checkpoint").iterdir()] == ["round-000001"]
    with pytest.raises((DiskRefused, UserError), match=r"no space left on device|cannot be written"):
        runner.resume(disk / "run", Observer())
    observer.free()
    runner.resume(disk / "run", Observer())
    assert result(disk / "run") == whole(values)


def test_a_disk_that_fills_at_any_file_leaves_nothing_corrupt(tiny, tmp_path, whole, monkeypatch):
    values, original = {**tiny, "rounds": 2}, files.writing
    for number in range(2, 40, 2):
        path, opened = tmp_path / f"run{number}", []

        @contextmanager
        def writing(file, *, sync=False, opened=opened, number=number):
            opened.append(file)
            with original(file, sync=sync) as held:
                yield held
                if len(opened) >= number:
                    raise OSError(28, "No space left on device")

        with monkeypatch.context() as patched:
            patched.setattr(files, "writing", writing)
            try:
                runner.start(resolve([values]), path, Observer())
            except (DiskRefused, UserError) as error:
                assert "no space left" in str(error).lower()
            else:
                break  # so many files are not written
        assert parts(path) == []
        again = (
            runner.resume
            if (path / "config.toml").exists()
            else lambda at, who: runner.start(resolve([values]), at, who)
        )
        again(path, Observer())
        assert result(path) == whole(values)
    assert number > 8, "the run wrote less than it should"


def test_a_directory_that_may_only_be_read(tiny, disk, protolith, whole):
    class Stop(Observer):
        def round_done(self, metrics):
            raise KeyboardInterrupt

    values = {**tiny, "rounds": 2}
    with pytest.raises(runner.Interrupted):
        runner.start(resolve([values]), disk / "run", Stop())
    with read_only(disk):
        code, _, said = protolith("resume", disk / "run")
        assert code == 2 and "cannot be written: Read-only file system" in said and "Traceback" not in said
        code, _, said = protolith("run", "--out", disk / "other", "--set", "width=4")
        assert code == 2 and "Read-only file system" in said
        code, _, said = protolith("report", disk / "run")
        assert code == 2 and "Read-only file system" in said
        assert sweep.state(disk / "run") == "stopped"
        write_report([disk / "run"], disk.parent / "page.html")  # what may be read can be shown
    runner.resume(disk / "run", Observer())
    assert result(disk / "run") == whole(values)


def test_a_report_on_a_full_disk_keeps_the_one_before(tiny, disk, protolith):
    runner.start(resolve([{**tiny, "rounds": 1}]), disk.parent / "run", Observer())
    page = disk / "report.html"
    page.write_text("the one before")
    with full(disk):
        code, _, said = protolith("report", disk.parent / "run", "--out", page)
    assert code == 2 and "No space left on device" in said and "Traceback" not in said
    assert page.read_text() == "the one before" and parts(disk) == []


def test_a_cache_on_a_full_disk(disk, monkeypatch, protolith):
    monkeypatch.setenv("PROTOLITH_CACHE", str(disk))
    code, _, said = protolith("run", "--set", "width=4", "--rounds", "1")
    assert code == 2 and "No space left on device" in said and "PROTOLITH_CACHE" in said
    assert list(disk.iterdir()) == []


def test_a_full_spool_is_one_sentence(tiny, disk, tmp_path, monkeypatch, whole):
    monkeypatch.setattr(spool, "MEMORY", disk)
    monkeypatch.setattr(spool, "LEAST_FREE", 0)
    values = {**tiny, "rounds": 2}
    observer = FillAfter(disk, 0)  # the first round makes all slots, and the others use them again
    with pytest.raises(DiskRefused, match="no space left on device"):
        runner.start(resolve([{**values, "workers": 1}]), tmp_path / "run", observer)
    assert list(disk.glob("protolith-spool-*")) == []
    observer.free()
    runner.resume(tmp_path / "run", Observer())
    assert result(tmp_path / "run") == whole(values)


def test_a_sweep_on_a_full_disk_names_the_reason(tiny, disk):
    config = resolve([{**tiny, "rounds": 2}])
    with full(disk):
        (outcome,) = sweep.run_sweep([config], disk, _Quiet(), 1)
    assert outcome.state == "failed"
    assert "No space left" in outcome.error or "the disk is full" in outcome.error, outcome.error
    (outcome,) = sweep.run_sweep([config], disk, _Quiet(), 1)
    assert outcome.state == "done"


class _Quiet(sweep.SweepObserver):
    pass


# two at once


def hold(path):
    code = (
        "import sys, time; from pathlib import Path; from protolith.runs.directory import RunDirectory\n"
        "with RunDirectory(Path(sys.argv[1])).lock():\n    print('held', flush=True); time.sleep(600)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    return process


def test_the_lock_names_its_holder_and_a_dead_one_holds_nothing(tiny, tmp_path, protolith):
    path = tmp_path / "run"
    RunDirectory.create(path, resolve([{**tiny, "rounds": 1}]))
    process = hold(path)
    code, _, said = protolith("resume", path)
    assert code == 2 and f"(process {process.pid} on {platform.node()}, since 2" in said
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    runner.resume(path, Observer())
    assert RunDirectory(path).summary() and not (path / ".holder.json").exists()


@pytest.mark.parametrize("text", ["", "[]", '{"pid": Infinity, "host": 1, "since": 2}', '{"pid": 1}', "\x00", "{" * 99])
def test_a_damaged_note_of_the_holder_only_takes_its_name(tiny, tmp_path, text):
    path = tmp_path / "run"
    RunDirectory.create(path, resolve([tiny]))
    with RunDirectory(path).lock():
        (path / ".holder.json").write_text(text)
        with pytest.raises(UserError, match=f"working on the run in {path}.$"), RunDirectory(path).lock():
            pass


def test_of_two_that_begin_at_once_one_has_the_directory(tiny, tmp_path):
    path = tmp_path / "run"
    code = (
        "import sys, json; from pathlib import Path; from protolith.runs.config import resolve\n"
        "from protolith.runs.directory import RunDirectory\nfrom protolith.errors import UserError\n"
        "sys.stdin.readline()\n"
        "try:\n    RunDirectory.create(Path(sys.argv[1]), resolve([json.loads(sys.argv[2])])); print('mine')\n"
        "except UserError as error: print(error)\n"
    )
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(path), json.dumps({**tiny, "seed": seed})],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for seed in (1, 2)
    ]  # fmt: skip
    time.sleep(4)
    for process in both:
        process.stdin.write("\n")
        process.stdin.flush()
    said = [process.communicate(timeout=60)[0].strip() for process in both]
    assert sorted(words == "mine" for words in said) == [False, True], said
    assert RunDirectory(path).config().seed == 1 + said.index("mine")


def test_a_run_that_was_killed_while_it_began_can_begin_again(tiny, tmp_path):
    path = tmp_path / "run"
    path.mkdir()
    for name in (".lock", ".holder.json", ".config.toml.999999999.part"):
        (path / name).write_text("")
    runner.start(resolve([{**tiny, "rounds": 1}]), path, Observer())
    assert parts(path) == []


def test_a_clock_that_goes_backwards_changes_nothing(tiny, tmp_path, whole, monkeypatch):
    values = {**tiny, "rounds": 2}
    now = iter(range(2_000_000_000, 0, -3600))
    monkeypatch.setattr(time, "time", lambda: next(now))
    runner.start(resolve([values]), tmp_path / "run", Observer())
    for number, file in enumerate(sorted((tmp_path / "run" / "checkpoint").iterdir())):
        os.utime(file, (10_000 - number, 10_000 - number))  # the newer checkpoint has the older time
    (tmp_path / "run" / "summary.json").unlink()
    runner.resume(tmp_path / "run", Observer())
    assert result(tmp_path / "run") == whole(values)


# files of a newer version, and damaged ones


@pytest.fixture
def stopped(tiny, tmp_path):
    """A run of three rounds, stopped after two."""

    class Stop(Observer):
        def round_done(self, metrics):
            if metrics.round == 2:
                raise KeyboardInterrupt

    with pytest.raises(runner.Interrupted):
        runner.start(resolve([tiny]), tmp_path / "run", Stop())
    return tmp_path / "run"


def newer_config(path):
    file = path / "config.toml"
    file.write_text(file.read_text().replace("format = 2", "format = 3"))


def newer_checkpoint(path):
    file = path / "checkpoint" / "round-000002" / "progress.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), "format": checkpoints.FORMAT + 1}))


def newer_summary(path):
    (path / "summary.json").write_text('{"format": 7}')


def newer_record(path):
    from safetensors import safe_open
    from safetensors.torch import save_file

    file = path / "checkpoint" / "round-000002" / "server.safetensors"
    with safe_open(str(file), framework="pt") as opened:
        record = {name: opened.get_tensor(name).clone() for name in opened.keys()}  # noqa: SIM118
    save_file(record, str(file), metadata={"format": "2"})
    description = file.with_name("progress.json")
    values = json.loads(description.read_text())
    description.write_text(json.dumps({**values, "sha256": checkpoints._sha256(file)}))


@pytest.mark.parametrize("change", [newer_config, newer_checkpoint, newer_summary, newer_record])
def test_what_a_newer_version_wrote_is_refused_and_kept(stopped, protolith, change):
    change(stopped)
    before = {file: file.read_bytes() for file in stopped.rglob("*") if file.is_file() and file.name != "metrics.jsonl"}
    code, _, said = protolith("resume", stopped)
    assert code == 2 and "newer version" in said and "Traceback" not in said
    assert all(file.read_bytes() == content for file, content in before.items())


def test_a_checkpoint_that_may_not_be_opened_is_not_thrown_away(stopped, monkeypatch):
    original = checkpoints._sha256

    def denied(path):
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(checkpoints, "_sha256", denied)
    with pytest.raises(DiskRefused, match="permission denied"):
        runner.resume(stopped, Observer())
    assert (stopped / "checkpoint" / "round-000002" / "server.safetensors").exists()
    monkeypatch.setattr(checkpoints, "_sha256", original)
    runner.resume(stopped, Observer())


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"round": Infinity}',
        '{"round": 2, "memories": [], "own_accuracy": {}, "sha256": ""}',
        "[" * 9999,
    ],
)
def test_a_damaged_description_goes_back_to_the_checkpoint_before(stopped, whole, tiny, text):
    (stopped / "checkpoint" / "round-000002" / "progress.json").write_text(text)
    said = []
    notes = Observer()
    notes.say = said.append
    runner.resume(stopped, notes)
    assert len(said) == 1 and "round-000002 is damaged" in said[0]
    assert result(stopped) == whole(tiny)


def test_an_older_damaged_checkpoint_does_not_stop_the_run(stopped, whole, tiny):
    (stopped / "checkpoint" / "round-000001" / "progress.json").write_text("{")
    (stopped / "checkpoint" / "round-x").mkdir()
    runner.resume(stopped, Observer())
    assert result(stopped) == whole(tiny)


def test_a_damaged_summary_is_made_anew(tiny, tmp_path):
    run = runner.start(resolve([{**tiny, "rounds": 1}]), tmp_path / "run", Observer())
    (run.path / "summary.json").write_text('{"method": ')
    assert run.summary() is None and sweep.state(run.path) == "stopped"
    runner.resume(run.path, Observer())
    assert run.summary().method == "fedavg"


def test_damaged_metrics_are_named(stopped):
    file = stopped / "metrics.jsonl"
    lines = file.read_text().splitlines()
    file.write_text("\n".join(["nonsense", "[1]", '{"round": "1"}', lines[1]]) + '\n{"round": 2, "cut')
    said = []
    notes = Observer()
    notes.say = said.append
    runner.resume(stopped, notes)
    assert said == ["metrics.jsonl is damaged: 1 round(s) are missing from it and from the summary."]
    assert [line.round for line in RunDirectory(stopped).metrics()] == [2, 3]


def test_a_summary_needs_a_tested_round(stopped, monkeypatch):
    monkeypatch.setattr(RunDirectory, "metrics", lambda self: [])
    with pytest.raises(RunFailed, match="holds no tested round"):
        runner.resume(stopped, Observer())


def test_a_client_whose_name_leads_elsewhere_writes_inside_models(tiny, tmp_path):
    from PIL import Image

    folder = tmp_path / "images"
    folder.mkdir()
    lines = ["path,label,site"]
    for number in range(16):
        Image.new("RGB", (16, 16), (number * 15, 99, 255 - number * 15)).save(folder / f"{number}.png")
        lines.append(f"{number}.png,{'ab'[number % 2]},{('../../out', 'b')[number // 8]}")
    (folder / "m.csv").write_text("\n".join(lines))
    values = {"task": str(folder / "m.csv"), "method": "solo", "rounds": 1, "workers": 0, "model": {"width": 4}}
    runner.start(resolve([{**values, "size": 16, "training": {"epochs": 1}}]), tmp_path / "x" / "run", Observer())
    written = sorted(file.name for file in (tmp_path / "x" / "run" / "models").iterdir())
    assert written == ["%2E.%2F..%2Fout-1.safetensors", "b-1.safetensors"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "x"]
    assert records.read(tmp_path / "x" / "run" / "models" / written[0])
