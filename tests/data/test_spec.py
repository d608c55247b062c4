"""A task is one file: what it may say, what it must say, and the ways by which one from outside is known."""

from importlib.metadata import EntryPoint

import pytest
import torch
from test_sources import scans, write_images, write_parquet

from protolith import doors
from protolith.data import spec as specs
from protolith.data.spec import FOLDER, TaskSpec, all_tasks, read_task, register_task
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.methods.registry import load_plugin, plugin_digest
from protolith.runs.config import resolve

TEXT = """
name = "pets"
domains = ["park", "home"]
classes = ["cat", "dog"]
split = "by-class"
size = 16

[settings]
rounds = 7
training = { epochs = 2, batch = 8 }
protocol = { name = "equal", samples = 0.5 }

[protocols.shift]
rounds = 9

[allocations]
pets-uneven = { park = 2, home = 1 }

[usual]
shift = "pets-uneven"

[methods.fpl]
tau = 0.5
"""


@pytest.fixture(autouse=True)
def alone(monkeypatch):
    monkeypatch.setattr(specs, "_PLUGGED", {})
    specs._installed.cache_clear()
    yield
    specs._installed.cache_clear()


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "pets.toml"
    path.write_text(TEXT)
    return path


def test_every_file_of_the_folder_is_a_task_of_ours():
    assert {path.stem for path in FOLDER.glob("*.toml")} == set(all_tasks()) == set(specs._ours())


def test_a_task_from_outside_is_one_file(file, tmp_path):
    load_plugin(str(file))
    for domain in ("park", "home"):
        for name in ("cat", "dog"):
            write_images(tmp_path / "data" / domain / name, 5)
    task = load_task("pets", data=tmp_path / "data", cache=tmp_path / "cache")
    assert task.size == 16 and task.classes == ("cat", "dog")
    assert [domain.test.counts(2) for domain in task.domains] == [[1, 1], [1, 1]]  # a fifth of each class
    config = resolve([{"task": "pets", "method": "fpl"}])
    assert (config.rounds, config.size, config.protocol.name, config.params["tau"]) == (7, 16, "equal", 0.5)
    assert resolve([{"task": "pets", "protocol": {"name": "shift"}}]).rounds == 9
    assert resolve([{"task": "pets"}, {"rounds": 3, "size": 32}]).size == 32


def test_the_content_of_a_tasks_file_is_its_digest(file):
    first = plugin_digest(str(file))
    file.write_text(TEXT.replace("rounds = 7", "rounds = 8"))
    load_plugin(str(file))
    assert plugin_digest(str(file)) != first and len(first) == 10


def test_a_plug_in_may_hold_a_task_beside_its_method(tmp_path):
    plugin = tmp_path / "mine.py"
    plugin.write_text(
        "from protolith.data.spec import TaskSpec\n"
        "settings = {'rounds': 1, 'training': {'epochs': 1, 'batch': 4}, 'protocol': {'name': 'sites'}}\n"
        "TASK = TaskSpec(name='mine', domains=('a',), classes=('x', 'y'), split='given', settings=settings)\n"
    )
    load_plugin(str(plugin))
    assert all_tasks()["mine"].domains == ("a",)


def test_a_package_brings_tasks_by_its_entry_point(monkeypatch, file):
    point = EntryPoint("pets", "somewhere:TASK", "protolith.tasks")
    monkeypatch.setattr(EntryPoint, "load", lambda _: read_task(file))
    monkeypatch.setattr(doors, "entry_points", lambda group: [point] if group == "protolith.tasks" else [])
    assert list(all_tasks()) == [*specs._ours(), "pets"]
    specs._installed.cache_clear()
    monkeypatch.setattr(EntryPoint, "load", lambda _: "no task")
    with pytest.raises(UserError, match=r"the entry point 'pets' of protolith\.tasks is not a protolith TaskSpec"):
        all_tasks()


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("rounds = 7\n", "", r"settings: a task says its rounds\.$"),
        ("epochs = 2, ", "", r"settings: a task says its training\.epochs\.$"),
        (TEXT[TEXT.index("[settings]") :], "", r"settings: Field required\.$"),
        ('"by-class"', '"at random"', r"split: Input should be 'given', 'by-position' or 'by-class'\.$"),
        ('["cat", "dog"]', '["cat", "cat"]', r"classes: 'cat' is there twice\.$"),
        ("home = 1", "house = 1", r"allocations\.pets-uneven names 'house', which is no domain of the task\.$"),
        ('shift = "pets-uneven"', 'shift = "uneven"', r"usual names 'uneven', which is no allocation of the task\.$"),
        ("size = 16", "sise = 16", r"sise: Extra inputs are not permitted\.$"),
        ('name = "pets"', "name = ", r"Invalid value"),
        ('name = "pets"', 'name = "../pets"', r"name: String should match"),
    ],
)
def test_a_fault_in_a_tasks_file_is_one_sentence(file, before, after, sentence):
    file.write_text(TEXT.replace(before, after, 1))
    with pytest.raises(UserError, match=rf"^the task's file '.*pets\.toml' cannot be used: .*{sentence}") as caught:
        read_task(file)
    assert "\n" not in str(caught.value)


def test_nobody_takes_the_name_of_a_task_of_ours(file):
    with pytest.raises(UserError, match=r"^the task 'pacs' is one of ours: give yours another name\.$"):
        register_task(TaskSpec.model_validate({**read_task(file).model_dump(), "name": "pacs"}))


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match=r"^the task's file '.*none\.toml' cannot be used: .*No such file"):
        load_plugin(str(tmp_path / "none.toml"))


def test_columns_and_the_rule_are_the_tasks_own_and_belong_to_what_is_decoded(file, tmp_path):
    images, _ = scans(16, 0, 40)
    kind, place = ["cat", "dog"] * 20, ["park"] * 20 + ["home"] * 20
    write_parquet(tmp_path / "data" / "pets" / "all.parquet", images, kind, image="picture", label="kind", place=place)
    columns = '[columns]\nimage = ["picture"]\nlabel = ["kind"]\ndomain = "place"\n'
    loaded = {}
    for rule in ("by-class", "by-position"):
        file.write_text(TEXT.replace("by-class", rule) + columns)
        load_plugin(str(file))
        loaded[rule] = load_task("pets", data=tmp_path / "data", cache=tmp_path / "cache")
        assert load_task("pets", cache=tmp_path / "cache").file == loaded[rule].file  # and found there again
    assert loaded["by-class"].file != loaded["by-position"].file
    tests = {rule: task.by_name["home"].test.labels.tolist() for rule, task in loaded.items()}
    assert tests == {"by-class": [0, 0, 1, 1], "by-position": [0, 0, 1, 1]}
    assert torch.equal(loaded["by-class"].by_name["park"].train.labels, torch.tensor([0] * 8 + [1] * 8))


def test_other_classes_are_decoded_anew(file, tmp_path):
    for domain in ("park", "home"):
        for name in ("cat", "dog", "emu"):
            write_images(tmp_path / "data" / domain / name, 5)
    file.write_text(TEXT.replace('"dog"]', '"dog", "emu"]'))
    load_plugin(str(file))
    assert len(load_task("pets", data=tmp_path / "data", cache=tmp_path / "cache").classes) == 3
    file.write_text(TEXT.replace('"cat", "dog"]', '"emu", "dog", "cat"]'))
    load_plugin(str(file))
    task = load_task("pets", data=tmp_path / "data", cache=tmp_path / "cache")
    assert task.classes == ("emu", "dog", "cat")
    assert load_task("pets", cache=tmp_path / "cache").classes == task.classes


def test_the_papers_values_of_a_method_and_a_tasks_own_options_meet(file):
    from protolith.methods.registry import get_method
    from protolith.runs.defaults import options_for

    load_plugin(str(file))
    assert options_for("pets", get_method("fpl")) == {"tau": 0.5}
    assert options_for("pacs", get_method("i2pfl"))["lambda_intra"] == 2.0
    assert options_for("pets", get_method("fedavg")) == {} == options_for("some/folder", get_method("fpl"))
