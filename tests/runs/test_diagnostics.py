"""What a run saves for its report: it agrees with the run's own numbers, is bounded, and changes nothing."""

import pytest
import torch

from protolith.data.protocols import allocate, select
from protolith.data.tasks import load_task
from protolith.experiments.sweep import job_name
from protolith.methods.base import Roster
from protolith.runs import diagnostics, runner
from protolith.runs.config import resolve
from protolith.runs.diagnostics import PrototypeLog, read_prototypes, read_shown, read_tests
from protolith.runs.runner import Observer

PLUGIN = """
import torch
from protolith.methods import fedavg
from protolith.methods.base import Spec
from protolith.methods.registry import Method

class Client(fedavg.Client):
    def upload(self):
        client, classes = self.context.client, self.context.classes
        return super().upload().with_knowledge(**{knowledge})

class Server(fedavg.Server):
    def schema(self):
        return {schema}

METHOD = Method(name="plain", title="Plain", paper="none", idea="none", objective="none", server_step="none",
                traffic="none", params=fedavg.Params, client=Client, server=Server)
"""
WITHOUT = [
    ("{'prototypes': torch.ones(classes, 32)}", "{'prototypes': Spec((10, 32))}"),
    ("{'prototypes': torch.ones(7)}", "{'prototypes': Spec((7,))}"),
    (
        "{'prototypes': torch.ones(3, 32), 'labels': torch.tensor([0, 1, 99])}",
        "{'prototypes': Spec((3, 32)), 'labels': Spec((3,), torch.int64)}",
    ),
    (
        "{'prototypes': torch.ones(3, 32), 'labels': torch.tensor([0, 1])}",
        "{'prototypes': Spec((3, 32)), 'labels': Spec((2,), torch.int64)}",
    ),
    (
        "{'prototypes': torch.ones(classes, 32), 'counts': torch.ones(classes, 2)}",
        "{'prototypes': Spec((10, 32)), 'counts': Spec((10, 2))}",
    ),
]


def run_of(tiny, path, **more):
    return runner.start(resolve([{**tiny, "rounds": 2, **more}]), path, Observer())


def by_domain(tests):
    """Accuracy in per cent by a plain loop."""
    found = {}
    for label, predicted, domain in zip(tests.label, tests.predicted, tests.domain, strict=True):
        found.setdefault(tests.domains[int(domain)], []).append(bool(label == predicted))
    return {domain: 100 * sum(hits) / len(hits) for domain, hits in found.items()}


def test_predictions_give_the_accuracy_of_the_last_round(tiny, tmp_path):
    run = run_of(tiny, tmp_path / "run", method="fpl")
    tests = read_tests(run.path)
    assert by_domain(tests) == pytest.approx(run.metrics()[-1].accuracy)
    assert tests.images == len(tests.label) and tests.of == tests.features_of == "the global model"
    assert bool((tests.confidence > 0).all()) and bool((tests.confidence <= 1).all())


def test_thumbnails_and_features_belong_to_their_images(tiny, tmp_path):
    run = run_of(tiny, tmp_path / "run")
    tests, task = read_tests(run.path), load_task("mini")
    assert len(tests.features) == len(tests.sampled) == diagnostics.SAMPLED * len(tests.domains)
    assert set(tests.sampled.tolist()) <= set(tests.shown.tolist())
    for place, picture in list(zip(tests.shown.tolist(), tests.thumbnails, strict=True))[::37]:
        split = select(task.by_name[tests.domains[int(tests.domain[place])]], tests.row[place : place + 1].long())
        assert torch.equal(split.images[0], picture) and int(split.labels[0]) == int(tests.label[place])
    for domain in range(len(tests.domains)):
        wrong = ((tests.predicted != tests.label) & (tests.domain == domain)).nonzero().flatten()
        surest = wrong[tests.confidence[wrong].float().argsort(descending=True, stable=True)[: diagnostics.MISTAKES]]
        assert set(surest.tolist()) <= set(tests.shown.tolist())


def test_clients_own_models_are_saved_as_they_were_tested(tiny, tmp_path):
    run = run_of(tiny, tmp_path / "run", method="fedbn", protocol={**tiny["protocol"], "name": "local"})
    tests = read_tests(run.path)
    sets = allocate(load_task("mini"), run.config().protocol, 0).tests
    assert len(tests.label) == sum(len(held.rows) for held in sets)
    assert "clients' own" in tests.of and tests.features_of == "the model of client pen-1"
    lines = run.metrics()[-1].matrix
    own = {name: values[place] for place, (name, values) in enumerate(lines.items())}
    assert by_domain(tests)["print"] == pytest.approx(own["print-1"])


def test_prototypes_of_rounds_are_saved_with_what_the_server_made(tiny, tmp_path):
    run = run_of(tiny, tmp_path / "run", method="fedcode")
    first, last = read_prototypes(run.path)
    assert (first.round, last.round) == (1, 2) and last.clients == ["pen-1", "pen-2", "photo-1", "print-1"]
    assert last.record["prototypes"].shape == (4, 10, 32) and last.domains == ["pen", "pen", "photo", "print"]
    held = last.record["counts"] > 0
    for label in range(10):
        mean = last.record["prototypes"][held[:, label], label].double().mean(0)
        assert torch.allclose(last.record["server/global"][label].double(), mean, atol=1e-5)
    assert read_shown(run.path)[-1].shown.style_groups.shape == (4,)
    assert not torch.equal(*(p.record["style"] for p in (first, last)))


def test_several_prototypes_a_class_become_one(tiny, tmp_path):
    run = run_of(tiny, tmp_path / "run", method="fedplvm", rounds=1)
    assert read_prototypes(run.path)[0].record["prototypes"].shape == (4, 10, 32)


def plugged(tiny, tmp_path, knowledge, schema):
    plugin = tmp_path / "plain.py"
    plugin.write_text(PLUGIN.replace("{knowledge}", knowledge).replace("{schema}", schema))
    return run_of(tiny, tmp_path / "run", method="plain", plugins=[str(plugin)])


@pytest.mark.parametrize(("knowledge", "schema"), WITHOUT)
def test_prototypes_of_a_kind_that_no_report_can_show_are_left_out_and_the_run_goes_on(
    tiny, tmp_path, knowledge, schema
):
    run = plugged(tiny, tmp_path, knowledge, schema)
    assert len(run.metrics()) == 2 and run.summary()
    assert read_prototypes(run.path) == [] and read_tests(run.path) is not None


def test_of_what_clients_send_differently_the_report_keeps_what_all_have(tiny, tmp_path):
    knowledge = (
        "{'prototypes': torch.ones(classes, 32), 'counts': torch.ones(classes), 'style': torch.ones(client + 1)}"
    )
    schema = "{'prototypes': Spec((10, 32)), 'counts': Spec((10,)), 'style': Spec(('any',))}"
    first, last = read_prototypes(plugged(tiny, tmp_path, knowledge, schema).path)
    assert "style" not in first.record and last.record["prototypes"].shape == (4, 10, 32)


def test_without_diagnostics_nothing_is_saved_and_the_result_is_the_same(tiny, tmp_path):
    runs = [run_of(tiny, tmp_path / str(on), method="fpl", diagnostics=on) for on in (True, False)]
    assert not (runs[1].path / "diagnostics").exists()
    assert runs[0].summary().accuracy == runs[1].summary().accuracy
    files = [(run.path / "model.safetensors").read_bytes() for run in runs]
    assert files[0] == files[1]
    assert job_name(runs[0].config()) == job_name(runs[1].config())


@pytest.mark.parametrize(("rounds", "classes", "kept"), [(1, 10, 1), (5, 10, 5), (100, 10, 12), (100, 5000, 3)])
def test_the_number_of_rounds_is_bounded(tmp_path, rounds, classes, kept):
    allocation = allocate(load_task("mini"), resolve([{}]).protocol, 0)
    log = PrototypeLog(tmp_path, allocation, (), Roster((1,), classes, 512, rounds))
    saved = [round_ for round_ in range(rounds) if log.keeps(round_)]
    assert len(saved) == kept and saved[0] == 0 and saved[-1] == rounds - 1


def test_what_is_damaged_or_missing_is_nothing(tmp_path):
    assert read_tests(tmp_path) is None and read_prototypes(tmp_path) == []
    (tmp_path / "diagnostics").mkdir()
    for name in ("tests", "prototypes-000001"):
        (tmp_path / "diagnostics" / f"{name}.safetensors").write_bytes(b"nonsense")
    assert read_tests(tmp_path) is None and read_prototypes(tmp_path) == []


def test_a_run_does_not_fail_for_want_of_diagnostics(tiny, tmp_path, monkeypatch):
    said = []

    class Notes(Observer):
        def say(self, text):
            said.append(text)

    def full(*_):
        raise OSError("no space left")

    monkeypatch.setattr(diagnostics, "write_tests", full)
    run = runner.start(resolve([{**tiny, "rounds": 1}]), tmp_path / "run", Notes())
    assert run.summary() and said[-1] == "predictions for the report are not saved: no space left"
