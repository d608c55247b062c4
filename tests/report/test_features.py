"""Features of test images: which images, what the network makes of them, and what is kept of it."""

import pytest
import torch

from protolith import records
from protolith.data.domain import MEAN, STD
from protolith.data.protocols import allocate
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.models import build_model
from protolith.prototypes import PrototypeSet
from protolith.report import features as module
from protolith.report.features import (
    Features,
    client_models,
    collect_features,
    draw,
    embed,
    read_features,
    write_features,
)
from protolith.runs.config import complete_for, resolve
from protolith.runs.directory import RunDirectory
from protolith.runs.run import Run

WIDTH = 2
LENGTH = 8 * WIDTH
CLASSES = [str(digit) for digit in range(10)]


def about(classes=CLASSES):
    return {"model": "resnet10", "width": WIDTH, "size": 32, "classes": classes}


def weights(seed):
    return build_model("resnet10", 10, WIDTH, seed).state_dict()


@pytest.fixture
def make_run(tmp_path):
    """Write the directory of a run on the embedded task, with a model that was never trained."""

    def make(name, method="fedavg", seed=0, knowledge=None, protocol="shift", file="model.safetensors"):
        given = {"method": method, "task": "mini", "seed": seed, "model": {"width": WIDTH}}
        config = complete_for(resolve([given, {"protocol": {"name": protocol}}]), load_task("mini"))
        run = RunDirectory.create(tmp_path / name, config)
        path = run.path / file
        path.parent.mkdir(exist_ok=True)
        records.write(path, {**weights(seed), **records.with_prefix("knowledge", knowledge or {})}, about=about())
        return Run(run.path)

    return make


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_a_draw_keeps_the_shares_of_the_classes():
    counts = [400, 150, 90, 40, 20, 0, 7]
    labels = torch.cat([torch.full((count,), label) for label, count in enumerate(counts)])
    labels = labels[torch.randperm(len(labels), generator=generator(5))]
    for limit in (1, 7, 50, 333, 707):
        chosen = draw(labels, limit, generator())
        assert len(chosen) == limit == len(set(chosen.tolist())) and chosen.tolist() == sorted(chosen.tolist())
        for label, count in enumerate(counts):
            assert abs(int((labels[chosen] == label).sum()) - limit * count / len(labels)) < 1.0
    assert len(draw(labels, 10_000, generator())) == len(labels)


def test_a_smaller_draw_is_part_of_a_larger_one_and_seeds_differ():
    labels = torch.arange(300) % 7
    small, large = (set(draw(labels, limit, generator()).tolist()) for limit in (30, 90))
    assert small < large
    assert small != set(draw(labels, 30, generator(1)).tolist())


def test_features_are_those_of_a_plain_loop(make_run):
    found = collect_features(make_run("r", seed=3), limit=20)
    task, model = load_task("mini"), build_model("resnet10", 10, WIDTH, 3).eval()
    assert found.features.shape == (80, LENGTH) and found.features.dtype == torch.float32
    assert found.domain_names == tuple(domain.name for domain in task.domains) and found.class_names == task.classes
    for index in (0, 19, 20, 45, 79):
        domain = task.domains[index // 20]
        row = int(found.rows[index]) - len(domain.train)
        assert int(found.domains[index]) == index // 20 and row >= 0
        assert int(found.labels[index]) == int(domain.test.labels[row])
        image = torch.empty(1, 3, 32, 32)
        for channel in range(3):
            plain = domain.test.images[row, :, :, channel].double() / 255
            image[0, channel] = (plain - MEAN[channel]) / STD[channel]
        with torch.no_grad():
            assert torch.allclose(found.features[index], model.features(image)[0], atol=1e-4, rtol=1e-4)


def test_all_runs_of_a_task_have_the_same_images(make_run):
    first = collect_features(make_run("a", "fedavg", seed=0), limit=30)
    other = collect_features(make_run("b", "fpl", seed=7), limit=30)
    again = collect_features(make_run("c"), limit=30, seed=1)
    for name in ("rows", "labels", "domains"):
        assert torch.equal(getattr(first, name), getattr(other, name))
    assert not torch.equal(first.features, other.features)
    assert not torch.equal(first.rows, again.rows)
    for index in range(4):
        counts = torch.bincount(first.labels[first.domains == index], minlength=10)
        assert counts.tolist() == [3] * 10  # every domain of the embedded task has as many of each class


def test_what_was_computed_is_read_again(make_run, monkeypatch):
    run = make_run("r", "i2pfl", knowledge={"global": torch.rand(10, LENGTH), "present": torch.ones(10).bool()})
    found = collect_features(run, limit=12)
    assert (run.path / "features" / "model-12.safetensors").is_file()
    computed = []
    monkeypatch.setattr(module, "_computed", lambda *given: computed.append(given) or found)
    assert same(collect_features(run, limit=12), found) and computed == []
    assert same(collect_features(run, limit=12, domains=["print"]), found.only(["print"])) and computed == []
    collect_features(run, limit=12, seed=1)
    assert len(computed) == 1  # another draw
    records.write(run.path / "model.safetensors", weights(9), about=about())
    collect_features(run, limit=12, seed=1)
    assert len(computed) == 2  # another model
    (run.path / "features" / "model-12.safetensors").write_bytes(b"damaged")
    collect_features(run, limit=12, seed=1)
    assert len(computed) == 3


def same(a, b):
    for name in ("features", "labels", "domains", "rows"):
        assert torch.equal(getattr(a, name), getattr(b, name))
    for name in ("prototypes", "clusters"):
        first, second = getattr(a, name), getattr(b, name)
        assert (first is None) == (second is None)
        if first is not None:
            assert torch.equal(first.vectors, second.vectors) and torch.equal(first.labels, second.labels)
    return a.domain_names == b.domain_names and a.class_names == b.class_names


def some(n=12, length=5, **others):
    rng = generator()
    return Features(
        torch.randn(n, length, generator=rng), torch.arange(n) % 3, torch.arange(n) % 2, torch.arange(n),
        ("east", "west"), ("a", "b", "c"), **others,
    )  # fmt: skip


def test_features_are_the_same_after_writing_and_reading(tmp_path):
    for index, features in enumerate(
        (
            some(),
            some(prototypes=PrototypeSet(torch.rand(2, 5), torch.tensor([0, 2]))),
            some(clusters=PrototypeSet(torch.rand(4, 5), torch.tensor([0, 0, 1, 2]))),
        )
    ):
        write_features(tmp_path / f"{index}.safetensors", features, {"limit": 3})
        assert same(read_features(tmp_path / f"{index}.safetensors"), features)


def test_prototypes_come_from_the_models_knowledge(make_run):
    present = torch.ones(10).bool()
    present[[2, 5]] = False
    vectors, clusters, labels = torch.rand(10, LENGTH), torch.rand(13, LENGTH), torch.randint(0, 10, (13,))
    both = {"global": vectors, "present": present, "clusters": clusters, "cluster_labels": labels}
    found = collect_features(make_run("both", "fpl", knowledge=both), limit=5)
    assert found.prototypes.labels.tolist() == [0, 1, 3, 4, 6, 7, 8, 9]
    for index, label in enumerate(found.prototypes.labels.tolist()):
        assert torch.equal(found.prototypes.vectors[index], vectors[label])
    assert torch.equal(found.clusters.vectors, clusters) and torch.equal(found.clusters.labels, labels)
    none = collect_features(make_run("none"), limit=5)
    assert none.prototypes is None and none.clusters is None
    elsewhere = {"global": torch.rand(10, 3), "present": present}
    assert collect_features(make_run("elsewhere", knowledge=elsewhere), limit=5).prototypes is None
    nobody = {"global": vectors, "present": torch.zeros(10).bool()}
    assert collect_features(make_run("nobody", knowledge=nobody), limit=5).prototypes is None


def test_only_some_domains_in_the_order_given():
    features = some(prototypes=PrototypeSet(torch.rand(2, 5), torch.tensor([0, 2])))
    west = features.only(["west"])
    assert west.domain_names == ("west",) and west.domains.tolist() == [0] * 6
    assert west.rows.tolist() == [1, 3, 5, 7, 9, 11] and torch.equal(west.features, features.features[1::2])
    assert west.prototypes is features.prototypes
    turned = features.only(["west", "east"])
    assert turned.rows.tolist() == [1, 3, 5, 7, 9, 11, 0, 2, 4, 6, 8, 10]
    assert turned.domains.tolist() == [0] * 6 + [1] * 6
    with pytest.raises(UserError, match=r"unknown domain 'wst'\. Did you mean 'west'\?"):
        features.only(["wst"])


def test_protocol_local_tests_the_clients_own_parts(make_run):
    run = make_run("r", protocol="local")
    found = collect_features(run, limit=100_000)
    tests = allocate(load_task("mini"), run.config.protocol, 0).tests
    for index, name in enumerate(found.domain_names):
        rows = sorted(row for test in tests if test.domain == name for row in test.rows.tolist())
        assert found.rows[found.domains == index].tolist() == rows
    few = collect_features(run, limit=10)
    assert len(few) == 10 * len(found.domain_names)
    for index, name in enumerate(few.domain_names):
        domain = load_task("mini").by_name[name]
        labels = torch.cat([domain.train.labels, domain.test.labels])
        assert torch.equal(few.labels[few.domains == index], labels[few.rows[few.domains == index]])


def test_a_clients_own_model(make_run):
    run = make_run("r", "fedbn", seed=4, file="models/photo-1.safetensors")
    assert list(client_models(run)) == ["photo-1"]
    with pytest.raises(UserError, match=r"no model.safetensors, only the clients' own models"):
        collect_features(run, limit=5)
    found = collect_features(run, client_models(run)["photo-1"], limit=5)
    assert (run.path / "features" / "photo-1-5.safetensors").is_file() and len(found) == 20
    assert same(found, collect_features(make_run("global", seed=4), limit=5))


def test_the_first_client_that_has_a_model_stands_for_its_domain(make_run):
    run = make_run("r", "fedbn", file="models/pen-2.safetensors")
    protocol = run.config.protocol.model_copy(update={"clients": {"pen": 3, "photo": 0, "print": 1}})
    changed = run.config.model_copy(update={"protocol": protocol})
    other = Run(RunDirectory.create(run.path.parent / "other", changed).path)
    (other.path / "models").mkdir()
    for name in ("pen-3", "pen-2", "print*-1", "round-000001", "street-1"):
        records.write(other.path / "models" / f"{name}.safetensors", {}, about=about())
    assert list(client_models(other)) == ["pen-2", "print*-1"]


def test_files_that_are_no_models_are_refused(make_run, tmp_path):
    run = make_run("r")
    with pytest.raises(UserError, match=r"models/nobody.safetensors does not exist"):
        collect_features(run, tmp_path / "models" / "nobody.safetensors")
    with pytest.raises(UserError, match="limit = 0: at least 1 image"):
        collect_features(run, limit=0)
    records.write(tmp_path / "other.safetensors", {"x": torch.zeros(1)})
    (tmp_path / "text.safetensors").write_text("hello")
    for name in ("other", "text"):
        with pytest.raises(UserError, match=f"{name}.safetensors is not a model that a run wrote"):
            collect_features(run, tmp_path / f"{name}.safetensors")
    records.write(tmp_path / "ab.safetensors", weights(0), about=about(["a", "b"]))
    with pytest.raises(UserError, match=r"its weights are not those of a \w+ for 2 classes"):
        collect_features(run, tmp_path / "ab.safetensors")
    of_two = {name: tensor[:2] if name.startswith("head.") else tensor for name, tensor in weights(0).items()}
    records.write(tmp_path / "ab.safetensors", of_two, about=about(["a", "b"]))
    with pytest.raises(UserError, match=r"knows the classes a, b, but task mini now has 0, 1"):
        collect_features(run, tmp_path / "ab.safetensors")


def test_features_and_prototypes_are_embedded_together():
    features = some(
        prototypes=PrototypeSet(torch.rand(3, 5), torch.arange(3)),
        clusters=PrototypeSet(torch.rand(4, 5), torch.tensor([0, 0, 1, 2])),
    )
    found, again = embed(features), embed(features)
    assert found.points.shape == (12, 2) and found.prototypes.shape == (3, 2) and found.clusters.shape == (4, 2)
    assert torch.equal(found.points, again.points)
    assert bool(torch.isfinite(found.points).all())


@pytest.mark.parametrize("points", [4, 5])
def test_few_points_and_points_in_one_place_are_embedded(points):
    assert embed(some(points)).points.shape == (points, 2)
    collapsed = Features(torch.zeros(points, 5), *[torch.zeros(points, dtype=torch.int64)] * 3, ("e",), ("a",))
    assert bool(torch.isfinite(embed(collapsed).points).all())


def test_what_cannot_be_embedded_is_refused():
    with pytest.raises(UserError, match="t-SNE of 3 points: at least 4"):
        embed(some(3))
    broken = some()
    broken.features[2, 1] = float("nan")
    with pytest.raises(UserError, match="the training has diverged"):
        embed(broken)
