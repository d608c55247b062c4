"""FedAvg's step, and what every baseline has to keep: pure clients, streaming servers, states that go on."""

import weakref

import pytest
import torch
from baseline_helpers import QUICK, Federation, plain_mean, random_weights, same, server, split, tiny, uploads_for

from protolith import records
from protolith.data.augment import to_input
from protolith.federation.guards import Guard
from protolith.methods.averaging import RecordMean
from protolith.methods.fedavg import is_buffer
from protolith.methods.registry import get_method
from protolith.records import Upload, clone

NAMES = [
    "fedavg", "fedprox", "solo", "feddyn", "moon", "fedopt", "copa", "fedga", "fedpac", "fedala", "fedbn", "scaffold",
]  # fmt: skip
EVERY = [(name, {}) for name in NAMES] + [
    ("fedopt", {"optimizer": "adam"}),
    ("fedopt", {"optimizer": "yogi", "average": "equal"}),
    ("feddyn", {"adaptive": False, "clip": 10}),
    ("copa", {"initial_heads": True}),
    ("fedga", {"metric": "loss", "centre": True}),
    ("fedpac", {"proto_pass": "last_epoch_train", "head_lr": 0.1}),
    ("fedala", {"layers": 0}),
    ("scaffold", {"average": "equal", "server_lr": 0.5}),
]
IDS = ["-".join([name, *(f"{k}={v}" for k, v in options.items())]) for name, options in EVERY]
every_method = pytest.mark.parametrize(("name", "options"), EVERY, ids=IDS)


@pytest.fixture(autouse=True)
def one_thread():
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def three_clients():
    """Different sizes; the second lacks class 2, the third has only that."""
    return [split(20, 1), split(11, 2, [i % 2 for i in range(11)]), split(6, 3, [2] * 6)]


@pytest.mark.parametrize("clients", [[0], [0, 1], [0, 1, 2], [2, 0]])
def test_the_mean_is_weighted_by_images_and_contains_the_buffers(clients):
    s = server("fedavg", (5, 20, 3))
    uploads = uploads_for(s, clients)
    s.aggregate(iter(uploads))
    same(s.weights, plain_mean([u.weights for u in uploads], [u.count for u in uploads]))
    assert s.weights["bn.num_batches_tracked"].dtype == torch.int64


def test_identical_models_are_their_own_mean():
    s = server("fedavg", (5, 20, 3))
    weights = random_weights(s.weights, 7)
    s.aggregate(Upload(m, s.roster.counts[m], weights) for m in range(3))
    for name, tensor in s.weights.items():
        assert torch.equal(tensor, weights[name])


def test_a_streaming_mean_does_not_lose_precision_with_many_clients():
    mean = RecordMean()
    for _ in range(3000):
        mean.add({"w": torch.tensor([16777.0, 1e-3])}, 1000.0)
    torch.testing.assert_close(mean.mean()["w"], torch.tensor([16777.0, 1e-3]), rtol=1e-6, atol=0)


def test_counters_of_batches_are_averaged_and_truncated():
    s = server("fedavg", (1, 2))
    uploads = uploads_for(s, [0, 1])
    for upload, value in zip(uploads, (10, 15), strict=True):
        upload.weights["bn.num_batches_tracked"] = torch.tensor(value)
    s.aggregate(iter(uploads))
    assert s.weights["bn.num_batches_tracked"].item() == 13  # 40 / 3


def test_the_clients_step_is_sgd_on_cross_entropy():
    """One batch, one epoch, no augmentation: θ − lr (g + wd θ)."""
    training = QUICK.model_copy(update={"epochs": 1, "batch": 64, "crop": 0, "flip": False, "weight_decay": 0.1})
    federation = Federation("fedavg", [split(9)], model=tiny(), training=training)
    model = tiny()
    model.train()
    images = to_input(split(9).images, torch.device("cpu"))
    torch.nn.functional.cross_entropy(model(images), split(9).labels).backward()
    (upload,) = federation.step()
    for name, parameter in model.named_parameters():
        expected = parameter - 0.05 * (parameter.grad + 0.1 * parameter)
        torch.testing.assert_close(upload.weights[name], expected.detach(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("buffers", ["average", "local"])
def test_buffers_follow_the_setting(buffers):
    federation = Federation("fedavg", three_clients(), buffers=buffers)
    uploads = federation.step()
    kept = records.under_prefix("own", federation.memories[1])
    assert set(kept) == ({name for name in uploads[1].weights if is_buffer(name)} if buffers == "local" else set())
    expected = plain_mean([u.weights for u in uploads], [20, 11, 6])
    same(federation.server.weights, expected)  # the server has averaged buffers in both cases
    # Where does client 1 start from in its next round?
    still = QUICK.model_copy(update={"lr": 1e-12, "epochs": 1, "batch": 64})
    federation.training = still
    federation.model.bn.momentum = 0.0
    upload, _ = federation.update(1)
    start = kept if buffers == "local" else federation.server.weights
    for name in ("bn.running_mean", "bn.running_var"):
        assert torch.equal(upload.weights[name], start[name])
    assert upload.weights["bn.num_batches_tracked"] == start["bn.num_batches_tracked"] + 1


def test_solo_exchanges_nothing_and_every_client_goes_on_with_its_own_model():
    federation = Federation("solo", three_clients())
    start = clone(federation.server.weights)
    first = federation.step([0, 1])
    assert all(not upload.weights for upload in first)
    assert all(torch.equal(start[name], t) for name, t in federation.server.weights.items())
    assert not federation.server.broadcast(0).weights and federation.server.broadcast(2).weights
    own = records.under_prefix("own", federation.memories[0])
    federation.training = QUICK.model_copy(update={"lr": 1e-12})
    federation.step()
    again = records.under_prefix("own", federation.memories[0])
    torch.testing.assert_close(again["conv.weight"], own["conv.weight"])


def test_solo_is_plain_training_of_one_client():
    alone, among = Federation("solo", three_clients()[:1]), Federation("solo", three_clients())
    for federation in (alone, among):
        federation.step()
        federation.step()
    for name, tensor in alone.memories[0].items():
        assert torch.equal(tensor, among.memories[0][name])


@every_method
@pytest.mark.parametrize("buffers", ["average", "local"])
def test_rounds_are_finite_with_few_clients_missing_classes_and_missed_rounds(name, options, buffers):
    federation = Federation(name, three_clients(), buffers=buffers, **options)
    for clients in ([0, 1], [2], [0, 1, 2], [1]):
        for upload in federation.step(clients):
            assert all(value == value and abs(value) < 1e6 for value in upload.metrics.values())
    assert records.is_finite(federation.server.state())
    assert all(records.is_finite(memory) for memory in federation.memories.values())


@every_method
def test_an_update_is_a_function_of_what_it_is_given(name, options):
    """Not of what the resident model did before, nor of PyTorch's own generator."""
    federation = Federation(name, three_clients(), **options)
    federation.step()
    federation.step()
    sent = [clone(federation.server.broadcast(0).weights), clone(federation.memories.get(0, {}))]
    upload, memory = federation.update(0)
    federation.update(1)
    torch.manual_seed(99)
    again, memory_again = federation.update(0)
    for a, b in ((upload.weights, again.weights), (upload.knowledge, again.knowledge), (memory, memory_again)):
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    assert upload.metrics == again.metrics
    now = [federation.server.broadcast(0).weights, federation.memories.get(0, {})]
    assert all(torch.equal(a[key], b[key]) for a, b in zip(sent, now, strict=True) for key in a)
    assert all(parameter.requires_grad for parameter in federation.model.parameters())


@every_method
def test_a_state_goes_on_identically_after_a_trip_to_disk(name, options, tmp_path):
    federation = Federation(name, three_clients(), **options)
    federation.step([0, 1])
    federation.step()
    records.write(tmp_path / "state.safetensors", federation.server.state())
    copy = Federation(name, three_clients(), **options)
    copy.server.load_state(records.read(tmp_path / "state.safetensors"))
    copy.memories, copy.round = dict(federation.memories), federation.round
    for one in (federation, copy):
        one.step([0, 2])
        one.step([1])
    here, there = federation.server.state(), copy.server.state()
    assert here.keys() == there.keys()
    assert all(torch.equal(here[key], there[key]) for key in here)


@every_method
def test_records_are_replaced_and_never_changed(name, options):
    federation = Federation(name, three_clients(), **options)
    federation.step()
    held = federation.server.state()
    before = clone(held)
    federation.step()
    assert all(torch.equal(held[key], before[key]) for key in held)


@every_method
def test_aggregation_holds_few_models_at_a_time(name, options):
    """The weights, and whatever else of an upload is as large as the model, are let go one by one."""
    federation = Federation(name, [split(8, m) for m in range(6)], **options)
    uploads = [federation.update(m)[0] for m in range(6)]
    big = [name for name, t in federation.server.weights.items() if name == "conv.weight"]
    copies = [Upload(u.client, u.count, clone(u.weights), clone(u.knowledge), u.metrics) for u in uploads]
    watched = [
        [weakref.ref(r[k]) for r, k in ((u.weights, big[0]), (u.knowledge, f"change/{big[0]}")) if k in r]
        for u in copies
    ]

    def stream():
        for index in range(6):
            alive = sum(ref() is not None for refs in watched[: max(0, index - 1)] for ref in refs)
            assert alive == 0
            yield copies[index]
            copies[index] = None

    federation.server.begin(0)
    federation.server.aggregate(stream())


@every_method
def test_the_guard_takes_what_is_right_and_nothing_else(name, options):
    federation = Federation(name, three_clients(), **options)
    upload = federation.step()[1]
    guard = Guard(federation.server)
    assert guard.problem(upload) is None
    odd = upload.with_knowledge(surplus=torch.zeros(1))
    assert "surplus" in guard.problem(odd)
    for key, tensor in upload.knowledge.items():
        if tensor.is_floating_point():
            assert key in guard.problem(upload.with_knowledge(**{key: torch.full_like(tensor, float("nan"))}))


@pytest.mark.parametrize("name", NAMES)
def test_methods_say_what_they_are(name):
    method = get_method(name)
    assert method.name == name
    for text in (method.title, method.paper, method.idea, method.objective, method.server_step, method.traffic):
        assert len(text) > 1
    assert (method.server.evaluates == "clients") == ("own models" in method.accuracy)
    assert all(info.description for info in method.params.model_fields.values())
