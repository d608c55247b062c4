"""Real sites as the engine: the same numbers as here, whoever fails. The network is left out: sites answer directly."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from test_doors import FILES, POINTS

from protolith import records
from protolith.cli.progress import Lines
from protolith.data import spec
from protolith.data.tasks import load_task
from protolith.errors import RunFailed, UserError
from protolith.evaluation import measures
from protolith.experiments.render import cell
from protolith.experiments.table import build_tables
from protolith.federation.local_update import Workplace
from protolith.flower import engine as module
from protolith.flower.engine import FlowerEngine, Patience
from protolith.flower.site import Site, SiteMemory
from protolith.flower.wire import Reply, Request, SiteFacts, hollow_task, wait_for_return
from protolith.methods import registry
from protolith.models import registry as models
from protolith.models.packaged import weights_of
from protolith.report.page.build import write_report
from protolith.runs import runner
from protolith.runs.config import complete_for, resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.result import Absence
from protolith.runs.run import Run
from protolith.runs.runner import Observer

SITES = ["pen", "photo", "print"]
RUN = "0" * 32
DESCRIBE = {"kind": "describe", "task": "", "classes": [], "size": 32, "skip_bad": False}


class Direct:
    """An exchange without a network; what happens to each request can be decided by the test."""

    def __init__(self, folder: Path, state: Path) -> None:
        self.sites = {name: Site(name, folder / name, state / name) for name in SITES}
        self.away: set[str] = set()
        self.asked: list[list[str]] = []
        self.change = lambda request, reply: reply

    def connected(self):
        return set(SITES) - self.away

    def ask(self, requests, seconds):
        self.asked.append([request.site for request in requests])
        replies = {}
        for request in requests:
            assert json.loads(json.dumps(request.about)) == request.about
            if request.site not in self.away:
                replies[request.site] = self.change(request, self.sites[request.site].answer(request))
        return {site: reply for site, reply in replies.items() if reply}


@pytest.fixture(scope="module")
def images(tmp_path_factory) -> Path:
    """Three sites' folders of class/image: four images of each class from the embedded task."""
    root = tmp_path_factory.mktemp("images")
    task = load_task("mini")
    for name in SITES:
        domain = task.by_name[name].train
        for label, label_name in enumerate(task.classes):
            folder = root / name / label_name
            folder.mkdir(parents=True)
            for number in torch.nonzero(domain.labels == label).flatten()[:4].tolist():
                Image.fromarray(domain.images[number].numpy()).save(folder / f"{number:05d}.png")
    return root


def settings(images, **others):
    small = {"model": {"width": 4}, "training": {"epochs": 1, "batch": 16}, "workers": 0}
    return {"task": str(images), "rounds": 3, "method": "fedavg", **small, **others}


def prepare(exchange, config, path, quorum=2, wait=0.0):
    """What the server does when a run is submitted."""
    asked = exchange.ask([Request(name, DESCRIBE) for name in SITES], 1)
    facts = [SiteFacts.from_plain(asked[name].about["facts"]) for name in SITES]
    exchange.asked.clear()
    task = hollow_task(config.task, facts, config.size)
    config = complete_for(config, task)
    workplace = Workplace(config, task)
    directory = RunDirectory.create(path, config) if not path.exists() else RunDirectory.open(path)
    engine = FlowerEngine(exchange, config, workplace.allocation, facts, RUN, Patience(quorum, wait, 60.0))
    return directory, config, workplace, engine


def at_sites(exchange, given, path, observer=None, **patience):
    directory, config, workplace, engine = prepare(exchange, resolve([{**given, "engine": "flower"}]), path, **patience)
    runner.go_on(directory, config, workplace, observer or Observer(), engine)
    return directory


def assert_same_run(one: RunDirectory, other: RunDirectory) -> None:
    models = [records.read(run.path / "model.safetensors") for run in (one, other)]
    assert models[0].keys() == models[1].keys()
    assert all(torch.equal(models[0][name], models[1][name]) for name in models[0])
    for a, b in zip(one.metrics(), other.metrics(), strict=True):
        assert (a.accuracy, a.mean, a.loss, a.rejected) == (b.accuracy, b.mean, b.loss, b.rejected)
        assert (a.bytes_down, a.bytes_up) == (b.bytes_down, b.bytes_up)


@pytest.mark.parametrize("method", ["fedavg", "fpl", "i2pfl", "fedcode"])
def test_sites_give_the_same_numbers_as_this_machine(images, tmp_path, method):
    given = settings(images, method=method)
    exchange = Direct(images, tmp_path / "state")
    run = at_sites(exchange, given, tmp_path / "sites")
    assert_same_run(run, runner.start(resolve([given]), tmp_path / "here", Observer()))
    assert len(exchange.asked) == 3 + 1  # a round's test and the next round's training are one exchange
    assert all(line.missing == () for line in run.metrics())


@pytest.mark.skipif(not weights_of("efficientnet-lite0")[1], reason="the pretrained weights are not installed")
def test_sites_encode_their_own_images_and_send_heads(images, tmp_path):
    given = settings(images, method="strata", size=32, model={"name": "efficientnet-lite0"})
    run = at_sites(Direct(images, tmp_path / "state"), given, tmp_path / "sites")
    assert_same_run(run, runner.start(resolve([given]), tmp_path / "here", Observer()))
    head, style = 4 * (1280 * 10 + 10), 4 * 12
    assert [line["bytes_up"] for line in run.metrics()] == [3 * (head + style)] * 3
    for site in SITES:
        assert len(list((tmp_path / "state" / site).rglob("encoded/*.safetensors"))) == 1


@pytest.fixture
def brought(tmp_path, monkeypatch):
    """An installed package with a method, a model and a measure."""
    about = tmp_path / "installed" / "outer-1.0.dist-info"
    about.mkdir(parents=True)
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: outer\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text(POINTS)
    for name, text in FILES.items():
        (tmp_path / "installed" / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path / "installed"))
    rooms = (registry, models, measures, spec)
    for room in rooms:
        room._installed.cache_clear()
    yield
    models._BUILDERS.pop("outer-model", None)
    monkeypatch.undo()
    for room in rooms:
        room._installed.cache_clear()


def test_what_a_package_brings_is_known_at_the_sites(brought, images, tmp_path):
    model = {"name": "outer-model", "width": 4}
    given = settings(images, method="outer-method", model=model, measures=["outer-measure"])
    run = at_sites(Direct(images, tmp_path / "state"), given, tmp_path / "sites")
    here = runner.start(resolve([given]), tmp_path / "here", Observer())
    assert_same_run(run, here)
    assert run.summary().measures == here.summary().measures and "outer-measure" in run.summary().measures


def test_sampled_sites_and_rare_tests_give_the_same_numbers(images, tmp_path):
    given = settings(images, method="moon", rounds=7, evaluate_every=2, protocol={"participation": 0.6})
    run = at_sites(Direct(images, tmp_path / "state"), given, tmp_path / "sites")
    here = runner.start(resolve([given]), tmp_path / "here", Observer())
    assert [line.accuracy for line in run.metrics()] == [line.accuracy for line in here.metrics()]
    models = [(r.path / "model.safetensors").read_bytes() for r in (run, here)]
    assert models[0] == models[1]


def test_a_site_that_nobody_trains_at_only_tests(images, tmp_path):
    given = settings(images, rounds=2, protocol={"name": "unseen", "unseen": "photo"})
    exchange = Direct(images, tmp_path / "state")
    run = at_sites(exchange, given, tmp_path / "sites")
    assert_same_run(run, runner.start(resolve([given]), tmp_path / "here", Observer()))
    assert list(run.metrics()[0].accuracy) == ["photo"]
    assert exchange.asked == [["pen", "print"], SITES, ["photo"]]


def test_memory_stays_at_the_site_and_only_what_may_be_needed_is_kept(images, tmp_path):
    exchange = Direct(images, tmp_path / "state")
    run = at_sites(exchange, settings(images, method="fedcode", rounds=5), tmp_path / "run")
    kept = sorted(file.name for file in (tmp_path / "state" / "pen" / "memory" / RUN).iterdir())
    assert kept[-1] == "client-00000-round-000005.safetensors" and len(kept) <= 4
    for note in (run.path / "memory").iterdir():
        assert records.read(note).keys() == {"round"}  # the server has no memory of a client, only a note


def test_a_site_that_is_away_is_left_out_and_comes_back_with_its_memory(images, tmp_path):
    exchange = Direct(images, tmp_path / "state")
    memories = []

    def change(request, reply):
        if request.site == "print" and (job := request.about.get("job")):
            memories.append((job["round"], job["memory"]))
            return None if job["round"] in (1, 2) else reply
        return reply

    exchange.change = change
    run = at_sites(exchange, settings(images, method="fedcode", rounds=5), tmp_path / "run")
    lines = run.metrics()
    assert [[(m.site, m.phase) for m in line.missing] for line in lines] == [
        [("print", "test")],  # its answer would have brought the test of the first round and the training of the second
        [("print", "training"), ("print", "test")],
        [("print", "training")],
        [],
        [],
    ]
    assert list(lines[1].accuracy) == ["pen", "photo"] and list(lines[4].accuracy) == SITES
    assert memories == [(0, -1), (1, 1), (2, 1), (3, 1), (4, 4)]


def test_a_site_that_died_is_named_on_screen_in_summary_table_and_report(images, tmp_path, capsys):
    exchange = Direct(images, tmp_path / "state")

    def change(request, reply):
        if (
            request.site == "print" and request.about.get("job", {}).get("round") == 2
        ):  # with the test of the second round of four
            exchange.away = {"print"}
        return None if request.site in exchange.away else reply

    exchange.change = change
    run = at_sites(exchange, settings(images, rounds=4), tmp_path / "run", Lines())
    lines, summary = run.metrics(), run.summary()
    assert [list(line.accuracy) for line in lines] == [SITES, SITES[:2], SITES[:2], SITES[:2]]
    means = {site: sum(line.accuracy[site] for line in lines) / 4 for site in SITES[:2]}
    assert summary.accuracy == pytest.approx(means) and summary.mean == pytest.approx(sum(means.values()) / 2)
    last = lines[0].accuracy["print"]
    assert summary.absent == {"print": Absence(last=1, accuracy=last, missed=(2, 3, 4))}
    said = f"print was not tested in round(s) 2 to 4 and is not in the mean; last tested in round 1, with {last:.2f} %"
    (table,) = build_tables([Run(run.path)])
    assert table.columns == [*SITES, "mean"] and table.rows[0].label == "FedAvg ‡"
    assert cell(table.rows[0], "print") == "–" and f"‡ fedavg, seed 0: {said}" in table.footer
    assert capsys.readouterr().err.count(" without print (pen ") == 3
    page = write_report([run.path], tmp_path / "report.html").read_text()
    assert said in page and "FedAvg without print in round(s) 2 to 4" in page and "FedAvg without print" in page


def test_sites_of_before_are_waited_for_until_they_answer_and_not_for_ever(images, tmp_path):
    """Flower takes a killed site for connected for a minute: what counts is an answer."""
    exchange, said, tries = Direct(images, tmp_path / "state"), [], []

    def change(request, reply):
        tries.append(request.site)
        return Reply("print", error="no answer") if request.site == "print" and tries.count("print") < 2 else reply

    exchange.change = change
    assert wait_for_return(exchange, SITES, 60, said.append) == []
    assert tries == [*SITES, "print"]
    assert "waiting for pen, photo, print, up to 60 s" in said[0] and said[-1] == "all of them are there"
    exchange.change = lambda request, reply: reply
    exchange.away = {"photo"}
    assert wait_for_return(exchange, SITES, 0.1, said.append) == ["photo"]
    assert said[-1] == "going on without photo: no answer within 0 s"


def test_a_lost_quorum_stops_the_run_with_a_sentence_and_resume_gives_the_same_result(images, tmp_path, monkeypatch):
    monkeypatch.setattr(module, "POLL", 0.01)
    given = settings(images, method="i2pfl", rounds=4)
    exchange = Direct(images, tmp_path / "state")

    class Leave(Observer):
        def round_done(self, metrics):
            exchange.away = {"photo", "print"} if metrics.round == 2 else set()

    exchange.change = lambda request, reply: None if request.site in exchange.away else reply
    broken = replace_change(exchange, round_=2, sites={"photo", "print"})
    with pytest.raises(RunFailed, match=r"needs 2 sites.*only 1 had answered.*photo.*protolith resume"):
        at_sites(exchange, given, tmp_path / "run", Leave(), wait=0.1)
    assert len(RunDirectory.open(tmp_path / "run").metrics()) == 2
    broken.clear()
    exchange.away = set()
    run = at_sites(exchange, given, tmp_path / "run")
    here = runner.start(resolve([given]), tmp_path / "here", Observer())
    models = [(r.path / "model.safetensors").read_bytes() for r in (run, here)]
    assert models[0] == models[1]


def replace_change(exchange, round_, sites):
    """Let sites fall silent when they are asked to train in a round, as long as they are in the returned set."""
    silent = set(sites)

    def change(request, reply):
        job = request.about.get("job")
        return None if job and job["round"] == round_ and request.site in silent else reply

    exchange.change = change
    return silent


class Stop(Exception):
    """The server process is gone."""


@pytest.mark.parametrize("method", ["fedavg", "fedcode"])
def test_a_killed_server_resumes_to_the_same_result(images, tmp_path, method):
    """Killed when the next round's uploads are there already, and the sites' memories are ahead of the checkpoint."""
    given = settings(images, method=method, rounds=4)
    exchange = Direct(images, tmp_path / "state")

    class Kill(Observer):
        def round_done(self, metrics):
            if metrics.round == 2:
                raise Stop

    with pytest.raises(Stop):
        at_sites(exchange, given, tmp_path / "run", Kill())
    run = at_sites(exchange, given, tmp_path / "run")
    assert_same_run(run, runner.start(resolve([given]), tmp_path / "here", Observer()))


def test_a_run_and_sites_that_counted_memories_from_0_go_on_to_the_same_result(images, tmp_path):
    """The server's notes tell under which numbers the sites' files are."""
    given = settings(images, method="fedcode", rounds=4)
    exchange = Direct(images, tmp_path / "state")

    class Kill(Observer):
        def round_done(self, metrics):
            if metrics.round == 2:
                raise Stop

    with pytest.raises(Stop):
        at_sites(exchange, given, tmp_path / "run", Kill())
    notes = [note for note in (tmp_path / "run" / "memory").iterdir() if note.suffix == ".safetensors"]
    files = sorted((tmp_path / "state").rglob("memory/*/client-*.safetensors"))
    assert notes and files
    for note in notes:
        records.write(note, {"round": records.clone(records.read(note))["round"] - 1})
    for file in sorted(notes) + files:
        stem, number = file.stem.rsplit("-", 1)
        file.rename(file.with_name(f"{stem}-{int(number) - 1:06d}.safetensors"))
    for file in (tmp_path / "run").glob("checkpoint/*/progress.json"):
        said = json.loads(file.read_text())
        memories = {client: round_ - 1 for client, round_ in said["memories"].items()}
        file.write_text(json.dumps({**said, "format": 1, "memories": memories}))
    run = at_sites(exchange, given, tmp_path / "run")
    assert_same_run(run, runner.start(resolve([given]), tmp_path / "here", Observer()))


def bad_uploads():
    def nan(weights):
        return {**weights, "head.bias": weights["head.bias"] * float("nan")}

    def shape(weights):
        return {**weights, "head.weight": weights["head.weight"][:, :2].clone()}

    def classes(weights):
        return {
            **weights,
            "head.bias": torch.zeros(11),
            "head.weight": torch.zeros(11, weights["head.weight"].shape[1]),
        }

    return [(nan, "not finite"), (shape, "has shape"), (classes, r"has shape \[11")]


@pytest.mark.parametrize(("spoil", "reason"), bad_uploads())
def test_a_bad_upload_is_rejected_by_name_and_the_round_goes_on(images, tmp_path, spoil, reason):
    import re

    exchange = Direct(images, tmp_path / "state")
    exchange.change = lambda request, reply: (
        replace(reply, records={**reply.records, "weights": spoil(reply.records["weights"])})
        if request.site == "photo" and "job" in request.about
        else reply
    )
    run = at_sites(exchange, settings(images, rounds=2), tmp_path / "run")
    for line in run.metrics():
        (rejected,) = line.rejected
        assert rejected.client == "photo-1" and re.search(reason, rejected.reason)
    assert records.is_finite(records.read(run.path / "model.safetensors"))


@pytest.mark.parametrize(
    "about", [{}, {"count": "many", "metrics": {}, "remembered": False}, {"correct": {"pen": 10**9}}, {"correct": 3}]
)
def test_an_answer_that_makes_no_sense_is_like_no_answer(images, tmp_path, about):
    exchange = Direct(images, tmp_path / "state")
    exchange.change = lambda request, reply: Reply("pen", about) if request.site == "pen" else reply
    change, exchange.change = exchange.change, lambda request, reply: reply
    directory, config, workplace, engine = prepare(exchange, resolve([settings(images, rounds=2)]), tmp_path / "run")
    exchange.change = change
    runner.go_on(directory, config, workplace, Observer(), engine)
    assert all({m.site for m in line.missing} == {"pen"} for line in directory.metrics())
    assert all("pen" not in line.accuracy for line in directory.metrics())


def test_what_a_site_refuses(images, tmp_path):
    site = Site("pen", images / "pen", tmp_path / "state")
    assert "this is site 'pen'" in site.answer(Request("photo", {"kind": "describe"})).error
    gone = Site("pen", images / "nowhere", tmp_path / "state")
    assert "does not exist" in gone.answer(Request("pen", DESCRIBE)).error
    strange = site.answer(Request("pen", {**DESCRIBE, "classes": ["cat", "dog"]}))
    assert "classes that the run does not know" in strange.error


@pytest.mark.parametrize(("device", "asked"), [("cuda:99", [SITES]), ("cpu", [SITES] * 3)])
def test_a_device_that_a_site_lacks_is_refused_before_the_first_round(images, tmp_path, device, asked):
    pytest.importorskip("flwr", reason="Flower is not installed")
    from protolith.flower.server import serve

    (tmp_path / "deployment.toml").write_text(f'name = "some"\nsites = {SITES}\nwait = 0.1\n')
    exchange, given = Direct(images, tmp_path / "state"), settings(images, device=device, engine="flower", rounds=1)
    run = RunDirectory.create(tmp_path / "run", resolve([given]))
    serve({"job": "train", "deployment": tmp_path, "directory": run.path}, lambda nodes: exchange)
    failed = json.loads((run.path / "flower.json").read_text())["failed"]
    refused = "a run begins when all sites are ready, and pen is not: device = 'cuda:99': this machine has"
    assert exchange.asked == asked
    assert (failed and failed["sentence"].startswith(refused)) if device != "cpu" else run.summary()


def test_a_site_whose_images_changed_since_the_run_began_says_so(images, tmp_path):
    own = tmp_path / "images"
    shutil.copytree(images, own)
    exchange = Direct(own, tmp_path / "state")
    directory, config, workplace, engine = prepare(exchange, resolve([settings(own, rounds=1)]), tmp_path / "run")
    extra = next((own / "pen" / "0").glob("*.png"))
    shutil.copy(extra, extra.with_name("zz.png"))
    runner.go_on(directory, config, workplace, Observer(), engine)
    (first, second) = directory.metrics()[0].missing
    assert first.site == second.site == "pen" and "when the run began" in first.reason


def test_a_run_id_cannot_lead_out_of_the_sites_folder(images, tmp_path):
    exchange = Direct(images, tmp_path / "state")
    directory, config, workplace, engine = prepare(exchange, resolve([settings(images, rounds=1)]), tmp_path / "run")
    engine.run = "../../elsewhere"
    with pytest.raises(RunFailed, match="not the id of a run"):
        runner.go_on(directory, config, workplace, Observer(), engine)


def test_a_lost_memory_is_an_error_and_not_a_fresh_start(tmp_path):
    with pytest.raises(UserError, match="memory of round 3 is not on the site's disk"):
        SiteMemory(tmp_path, 0).read(3)
    assert SiteMemory(tmp_path, 0).read(-1) == {}


def test_sites_learn_nothing_of_one_anothers_images(images, tmp_path):
    seen = []
    exchange = Direct(images, tmp_path / "state")
    exchange.change = lambda request, reply: (seen.append(request), reply)[1]
    at_sites(exchange, settings(images, rounds=1), tmp_path / "run")
    for request in seen:
        assert "per_class" not in json.dumps(request.about)
        assert request.about.get("sites", SITES) == SITES


def test_flower_is_imported_in_its_own_room_only():
    import protolith

    root = Path(protolith.__file__).parent
    users = {str(file.relative_to(root)) for file in root.rglob("*.py") if "from flwr" in file.read_text()}
    assert users == {"flower/carrier.py"}
