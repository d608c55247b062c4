"""The list of layers: its order, that all hooks pass through it, and that a method without any knows of none."""

from dataclasses import replace

import pytest
import torch

from protolith.data.domain import Split
from protolith.data.tasks import load_task
from protolith.errors import UserError
from protolith.federation.layers import layers_of
from protolith.federation.layers.base import Layer, Layers
from protolith.federation.local_update import Workplace, sequential
from protolith.federation.setup import Setup
from protolith.methods.averaging import Pooling, RecordMean
from protolith.methods.base import Around, Spec
from protolith.methods.registry import get_method
from protolith.methods.shown import Shown
from protolith.records import Broadcast, Upload
from protolith.runs.config import complete_for, resolve

EVERYTHING = {
    "robust": "clip",
    "attack": {"kind": "noise"},
    "privacy": {"clip": 1.0},
    "training": {"style_exchange": 0.5, "style_balance": True},
}
ORDER = ["PrivacyLayer", "StylesLayer", "AttackLayer", "RobustLayer", "BalanceLayer"]


def names(layers):
    return [type(layer).__name__ for layer in layers.all]


def test_the_list_is_in_the_order_in_which_an_upload_meets_it():
    assert names(layers_of(Setup(**EVERYTHING), [3, 4], 2)) == ORDER
    assert names(layers_of(Setup(), [3, 4], 2)) == []
    assert names(layers_of(Setup(training={"style_balance": True}), [3, 4], 2)) == ["StylesLayer", "BalanceLayer"]


class Adds(Layer):
    """Leaves its mark on everything."""

    def __init__(self, mark, alone=False):
        self.mark, self.alone = mark, alone

    def refuses(self, method, params, beside):
        return f"{self.mark} wants to be alone." if self.alone and len(beside) > 1 else None

    def data(self, data, client):
        return Split(data.images, data.labels * 10 + self.mark)

    def images(self, images, client):
        return images * 10 + self.mark

    features = images

    def totals(self, sums, counts, client):
        return sums * 10 + self.mark, counts + 1

    def upload(self, upload, client):
        return upload.with_knowledge(**{f"m{self.mark}": torch.tensor(len(upload.knowledge))})

    def away(self, round_):
        return {self.mark + round_}

    def knowledge(self):
        return {f"k{self.mark}": torch.tensor(self.mark)}

    def broadcast(self, message, client):
        return Broadcast(message.weights, {**message.knowledge, f"b{self.mark}": torch.tensor(len(message.knowledge))})

    def schema(self):
        return {f"m{self.mark}": Spec(())}

    def receive(self, uploads):
        return (replace(upload, count=upload.count * 10 + self.mark) for upload in uploads)

    def shown(self, shown):
        return replace(shown, labels=torch.tensor(self.mark))

    def state(self):
        return {f"s{self.mark}": torch.tensor(self.mark)}

    def load_state(self, state):
        self.mark = int(state[f"s{self.mark}"]) + 5


def test_every_hook_passes_through_all_layers_in_order():
    layers, one = Layers([Adds(1), Adds(2)]), torch.ones(1)
    images = torch.zeros(1, 1, 1, 3, dtype=torch.uint8)
    assert layers.data(Split(images, torch.tensor([1])), 0).labels.tolist() == [112]
    assert layers.images(one, None).tolist() == layers.features(one, None).tolist() == [112.0]
    assert [part.tolist() for part in layers.totals(one, one, None)] == [[112.0], [3.0]]
    assert layers.upload(Upload(0, 1), None).knowledge == {"m1": torch.tensor(0), "m2": torch.tensor(1)}
    assert layers.away(4) == {5, 6} and set(layers.knowledge()) == {"k1", "k2"} and set(layers.schema()) == {"m1", "m2"}
    assert layers.broadcast(Broadcast({}), 0).knowledge == {"b1": torch.tensor(0), "b2": torch.tensor(1)}
    assert [upload.count for upload in layers.receive([Upload(0, 1)])] == [112]
    assert int(layers.shown(Shown()).labels) == 2
    assert layers.state() == {"s1": torch.tensor(1), "s2": torch.tensor(2)}
    layers.load_state(layers.state())
    assert [layer.mark for layer in layers.all] == [6, 7]
    assert isinstance(layers.pooling().averaging(), RecordMean)


@pytest.mark.parametrize("layer", [Layer(), Layers()], ids=["a layer that does nothing", "no layer"])
def test_nothing_changes_where_nothing_is_asked_for(layer):
    one, upload, message = torch.ones(1), Upload(0, 1), Broadcast({})
    assert layer.images(one, None) is layer.features(one, None) is one and layer.totals(one, one, None) == (one, one)
    assert layer.upload(upload, None) is upload and layer.broadcast(message, 0) is message
    assert list(layer.receive([upload])) == [upload] and layer.away(0) == set()
    assert layer.knowledge() == layer.schema() == layer.state() == {} and layer.exact_counts
    assert {name for name in vars(Around) if not name.startswith("_")} <= {*vars(Layers)}


def test_a_layer_refuses_a_method_or_another_layer_in_its_own_words():
    fedavg = get_method("fedavg")
    Layers([Adds(1, alone=True)]).check(fedavg, fedavg.params())
    with pytest.raises(UserError, match="1 wants to be alone"):
        Layers([Adds(1, alone=True), Adds(2)]).check(fedavg, fedavg.params())


def test_pooling_is_the_plain_means_unless_a_layer_brings_another():
    points = torch.rand(3, 2)
    assert Pooling().moderate(points) is points
    task = load_task("mini")
    for rule, kind in (("mean", Pooling), ("clip", None)):
        settings = {"task": "mini", "robust": rule, "model": {"width": 4}}
        found = Workplace(complete_for(resolve([settings]), task), task).server().pooling
        assert type(found) is kind if kind else found.kind == rule


def test_another_executor_takes_the_place_of_the_sequential_one():
    task, seen = load_task("mini"), []

    def spy(client_type, contexts):
        for context in contexts:
            seen.append((client_type, context.client, context.round))
            yield from sequential(client_type, [context])

    config = complete_for(resolve([{"task": "mini", "model": {"width": 4}, "training": {"epochs": 1}}]), task)
    plain, other = Workplace(config, task), Workplace(config, task, execute=spy)
    message = plain.server().broadcast(1)
    one, two = (place.update(1, 3, message, {})[0] for place in (plain, other))
    assert seen == [(get_method("fedavg").client, 1, 3)]
    assert one.weights.keys() == two.weights.keys() and all(
        torch.equal(one.weights[n], two.weights[n]) for n in one.weights
    )
