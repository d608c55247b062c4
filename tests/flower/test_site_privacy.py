"""The noise of a real site: from its operating system, not from the server's seed, and counted each time."""

import pytest
import torch
from PIL import Image

from protolith import records
from protolith.data.tasks import load_task
from protolith.federation.engine import Job
from protolith.federation.local_update import Workplace
from protolith.flower.engine import FlowerEngine, Patience
from protolith.flower.site import Site, SiteMemory
from protolith.flower.wire import Request, hollow_task
from protolith.runs.config import complete_for, resolve

RUN = "0" * 32
SITE = "pen"


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    root = tmp_path_factory.mktemp("images")
    task = load_task("mini")
    domain = task.by_name[SITE].train
    for label, name in enumerate(task.classes):
        (root / SITE / name).mkdir(parents=True)
        for number in torch.nonzero(domain.labels == label).flatten()[:4].tolist():
            Image.fromarray(domain.images[number].numpy()).save(root / SITE / name / f"{number:05d}.png")
    return root


class Federation:
    """One site that answers directly, and the server's engine that asks it."""

    def __init__(self, images, state, privacy, method="fpl"):
        self.site = Site(SITE, images / SITE, state)
        given = {"method": method, "task": str(images), "rounds": 3, "model": {"width": 4}, "privacy": privacy}
        params = {"proto_pass": "eval_pass"} if method == "fpl" else {}
        config = resolve([{**given, "training": {"epochs": 1, "batch": 16}, "params": params}])
        facts = self.site.facts("", (), 32)
        task = hollow_task(config.task, [facts], config.size)
        self.config = complete_for(config, task)
        self.workplace = Workplace(self.config, task)
        method_, w = self.workplace.method, self.workplace
        self.server = method_.server(w.params, w.initial, w.roster)
        self.engine = FlowerEngine(self, self.config, w.allocation, [facts], RUN, Patience(1, 0.0, 60.0))
        self.replies = []

    def connected(self):
        return {SITE}

    def ask(self, requests, seconds):
        self.replies += [self.site.answer(request) for request in requests]
        return {reply.site: reply for reply in self.replies[-len(requests) :]}

    def train(self, memory, round_=0):
        memory.mkdir(exist_ok=True)
        job = Job(0, SITE, round_, 32, None, memory / f"{round_}.safetensors", evaluate=False)
        (result,) = self.engine.train([job], self.server.broadcast)
        return result.upload


def test_noise_at_a_site_does_not_follow_from_the_seed(images, tmp_path):
    noisy = Federation(images, tmp_path / "state", {"noise": 1.0, "clip": 3.0})
    one, other = noisy.train(tmp_path / "memory"), noisy.train(tmp_path / "memory")
    own = load_own(noisy)
    seeded = Workplace(noisy.config, own).update(0, 0, noisy.server.broadcast(0), {})[0]
    for upload in (one, other):  # all but the noise is the same, here and there
        assert all(torch.equal(upload.weights[name], seeded.weights[name]) for name in seeded.weights)
    drawn = [upload.knowledge["prototypes"] for upload in (one, other, seeded)]
    assert not any(torch.equal(drawn[a], drawn[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


def load_own(federation):
    """The site's images as the site has them."""
    config = federation.config
    return federation.site.load(config.task, (), config.size)


def test_without_noise_a_site_sends_what_a_simulation_sends(images, tmp_path):
    plain = Federation(images, tmp_path / "state", {"clip": 3.0, "least": 3})
    upload = plain.train(tmp_path / "memory")
    here = Workplace(plain.config, load_own(plain)).update(0, 0, plain.server.broadcast(0), {})[0]
    assert torch.equal(upload.knowledge["prototypes"], here.knowledge["prototypes"])
    assert "releases" not in plain.replies[-1].about and plain.engine.releases == {SITE: 0}


def test_a_site_counts_what_it_has_sent_also_after_a_restart(images, tmp_path):
    noisy = Federation(images, tmp_path / "state", {"noise": 1.0, "clip": 3.0})
    for wanted in (1, 2):  # the same round, asked for twice: new noise, so it counts twice
        noisy.train(tmp_path / "memory")
        assert noisy.engine.releases == {SITE: wanted}
    restarted = Federation(images, tmp_path / "state", {"noise": 1.0, "clip": 3.0})
    restarted.train(tmp_path / "memory", round_=1)
    assert restarted.engine.releases == {SITE: 3}


def test_a_memory_that_is_written_leaves_the_count_alone(tmp_path):
    memory = SiteMemory(tmp_path, 0)
    assert memory.count_release() == 1
    memory.write(0, {"x": torch.zeros(1)}, keep=[])
    memory.write(1, {"x": torch.ones(1)}, keep=[])
    assert memory.count_release() == 2
    assert float(records.read(tmp_path / "client-00000-round-000001.safetensors")["x"]) == 1.0


def test_a_site_refuses_what_it_cannot_protect(images, tmp_path):
    plain = Federation(images, tmp_path / "state", {}, method="fedpac")
    about = plain.engine._request(SITE).about
    about["setup"]["privacy"] = {"noise": 1.0, "clip": 3.0}
    reply = plain.site.answer(Request(SITE, about))
    assert "privacy is not for method 'fedpac'" in reply.error


@pytest.mark.parametrize(("noise", "told"), [(0.0, True), (1.0, False)])
def test_a_run_with_noise_does_not_ask_for_exact_counts_by_class(images, tmp_path, noise, told):
    from protolith.flower.plan import Deployment, Plan
    from protolith.flower.server import describe

    deployment = Deployment(tmp_path)
    deployment.write(Plan(name="trial", sites=[SITE]))
    federation = Federation(images, tmp_path / "state", {"noise": noise, "clip": 3.0})
    facts = describe(federation, deployment, federation.config)[SITE].about["facts"]
    assert facts["train"] > 0 and len(facts["classes"]) == 10
    assert len(facts["per_class"]) == (10 if told else 0)
