"""A client's work as a pure function of what it is given, and the place where it is done."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, cast

import torch
from torch import nn

from protolith.data.domain import Split, Task
from protolith.data.protocols import Allocation, allocate, data_of, select
from protolith.errors import UserError
from protolith.evaluation.accuracy import Chunk
from protolith.evaluation.measures import Counts, added, count, measures_of
from protolith.federation.layers import layers_of
from protolith.federation.layers.base import Layers
from protolith.federation.setup import Setup
from protolith.methods.base import Context, Roster
from protolith.methods.fedavg import Client, Server
from protolith.methods.registry import get_method
from protolith.models import Network, build_model, saved
from protolith.models.backbones import is_backbone, open_backbone
from protolith.models.passes import BATCH, answers
from protolith.models.registry import build_tuned
from protolith.models.resnet import ResNet
from protolith.models.saved import load_weights
from protolith.models.spec import InputSpec, see, spec_of
from protolith.records import Broadcast, Record, Upload, clone
from protolith.seeds import derive


def choose_device(name: str) -> torch.device:
    """Turn the setting into a device; `auto` takes the fastest there is."""
    if name != "auto":
        return torch.device(name)
    if torch.cuda.is_available():
        return torch.device("cuda")
    return torch.device("mps" if torch.backends.mps.is_available() else "cpu")


def present_device(name: str) -> torch.device:
    """The device of the setting; a sentence where this machine has none such."""
    device = choose_device(name)
    if device.type == "cuda" and not torch.cuda.is_available():
        raise UserError(f"device = '{name}': this machine has no CUDA that torch can use; use auto or cpu.")
    if device.type == "cuda" and (device.index or 0) >= torch.cuda.device_count():
        raise UserError(f"device = '{name}': this machine has only {torch.cuda.device_count()} CUDA device(s).")
    if device.type == "mps" and not torch.backends.mps.is_available():
        raise UserError(f"device = '{name}': this machine has no MPS, which is Apple's; use auto or cpu.")
    return device


@contextmanager
def one_thread() -> Iterator[None]:
    """Compute on one thread: workers are processes, and sums then come out the same everywhere."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Workplace:
    """What a worker holds ready: the task, one resident model, the method and what stands around it."""

    def __init__(
        self,
        setup: Setup,
        task: Task,
        at_site: bool = False,
        execute: "Executor | None" = None,
        pictures: Task | None = None,
    ) -> None:
        self.setup = setup
        self.execute = execute or sequential
        self.at_site = at_site  # and not in a simulation
        self.task = task
        self.pictures = pictures or task  # the decoded images, where clients train on what is made of them
        self.allocation: Allocation = allocate(task, setup.protocol, setup.seed)
        self.method = get_method(setup.method)
        self.params = self.method.params.model_validate(setup.params)
        self.measures = measures_of(setup.measures)
        self.layers = self.new_layers()
        self.layers.check(self.method, self.params)
        self._refuse_frozen()
        self.device = choose_device(setup.device)
        self._first: nn.Module | None = self._build()
        self.spec = spec_of(self._first)
        self.backbone: dict[str, Any] | None = getattr(self._first, "about", None)  # where it is a pretrained one
        self.method.client.check(self._first)

    def _refuse_frozen(self) -> None:
        """Refuse what needs images, or trained features, where a frozen backbone has made them."""
        chosen = self.setup.model
        if chosen.tune == "head" and not chosen.projection and self.method.client.shapes_features:
            raise UserError(
                f"{self.method.title}'s losses act on features, and none are trained below the head: set "
                "model.projection, for instance to 256."
            )
        if chosen.frozen and getattr(self.params, "mixup", "") == "input":
            raise UserError(
                f"params.mixup = 'input' mixes images, and with model.tune = '{chosen.tune}' clients have none."
            )
        if chosen.frozen and self.setup.training.style_exchange:
            raise UserError(
                f"model.tune = '{chosen.tune}': a frozen backbone saw the images before they could be re-coloured; "
                "set training.style_exchange to 0, and model.views to 5 for views in other colours."
            )

    @cached_property
    def model(self) -> nn.Module:
        """The resident network, whose weights everyone who uses it puts there first."""
        present_device(self.setup.device)  # at a site or in a cluster nobody looked before
        # channels_last is the layout in which CPU and GPU convolutions are fastest.
        return self._drawn().to(self.device, memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]

    @property
    def initial(self) -> Record:
        """The weights that the seed draws."""
        return {name: tensor.detach() for name, tensor in self._drawn().state_dict().items()}

    def _drawn(self) -> nn.Module:
        """A network as the seed draws it: a server needs the weights, a worker the network, and few need both."""
        first, self._first = self._first, None
        return self._build() if first is None else first

    def _build(self) -> nn.Module:
        chosen, name = self.setup.model, self.setup.model.name
        classes, seed, size = len(self.task.classes), self.setup.seed, self.setup.size
        model: nn.Module
        if is_backbone(name):
            model = build_tuned(
                name, classes, seed, chosen.tune, size, chosen.weights, chosen.sha256, chosen.projection, chosen.scale
            )
        else:
            model = build_model(name, classes, chosen.width, seed, size)
        if chosen.input:  # as the run wrote it down, whatever a library says today
            model.spec = InputSpec.of(chosen.input)  # type: ignore[assignment]
        if self.setup.training.precision == "bfloat16":
            if not isinstance(model, ResNet):
                raise UserError(f"training.precision = 'bfloat16' is for resnet10 and resnet18, not for {name}.")
            model.in_bfloat16 = True
        return model

    @cached_property
    def roster(self) -> Roster:
        """What the server may know about the clients."""
        counts = tuple(len(client.rows) for client in self.allocation.clients)
        network = self.model if self._first is None else self._first
        buffers = frozenset(name for name, _ in network.named_buffers())
        return Roster(
            counts,
            len(self.task.classes),
            self._feature_length(),
            self.setup.rounds,
            buffers,
            self.layers.pooling(),
            self.layers.exact_counts,
        )

    def _feature_length(self) -> int:
        network = self.model if self._first is None else self._first
        head = cast(Network, network).head
        if isinstance(head, nn.Linear):
            return head.in_features  # a pass would load kernels that a server does not need
        probe = torch.zeros(1, 3, self.setup.size, self.setup.size, device=next(network.parameters()).device)
        network.eval()
        with torch.inference_mode():
            return int(cast(Network, network).features(probe).shape[1])

    def server(self, weights: Record | None = None) -> Server:
        """The method's server; it starts from these weights or from those of the seed."""
        return self.method.server(self.params, self.initial if weights is None else weights, self.roster)

    def new_layers(self) -> Layers:
        """The layers of the run, as they are before its first round; a server needs some of its own."""
        images = [len(client.rows) for client in self.allocation.clients]
        return layers_of(self.setup, images, len(self.task.classes), self.at_site)

    def client_data(self, client: int) -> Split:
        """The private data set of a client."""
        return data_of(self.task, self.allocation.clients[client])

    def test_data(self, chunk: Chunk) -> Split:
        """The images of a chunk of a test set."""
        test = self.allocation.measured[chunk.test]
        return select(self.task.by_name[test.domain], test.rows[chunk.start : chunk.stop])

    def update(
        self,
        client: int,
        round_: int,
        broadcast: Broadcast,
        memory: Record,
        evaluate: bool = False,
        copy: Callable[[Record], Record] = clone,
    ) -> tuple[Upload, Record]:
        """Run `local_update` for one client; with `evaluate`, test its model on everything afterwards."""
        context = replace(self.context(client, round_, broadcast, memory), copy=copy)
        [(upload, new_memory)] = self.execute(self.method.client, [context])
        if evaluate:
            upload = replace(upload, counts=self._own_counts(broadcast.knowledge))
        return upload, new_memory

    def context(self, client: int, round_: int, broadcast: Broadcast, memory: Record) -> Context:
        """Gather all that a client's work of one round depends on."""
        seed = derive(self.setup.seed, "round", round_, "client", client)
        return Context(
            client=client,
            round=round_,
            rounds=self.setup.rounds,
            classes=len(self.task.classes),
            params=self.params,
            training=self.setup.training,
            buffers=self.setup.buffers,
            model=self.model,
            data=self.layers.data(self.client_data(client), client),
            weights=broadcast.weights,
            knowledge={name: tensor.to(self.device) for name, tensor in broadcast.knowledge.items()},
            memory=memory,
            rng=torch.Generator().manual_seed(seed),
            seed=seed,
            device=self.device,
            run_seed=self.setup.seed,
            layers=self.layers,
        )

    def _own_counts(self, knowledge: Record) -> dict[str, Counts]:
        """Test the model as training left it on every test set."""
        tests = enumerate(self.allocation.tests)
        return {test.name: self._counted(Chunk(index, 0, len(test.rows)), knowledge) for index, test in tests}

    def about_model(self) -> dict[str, Any]:
        """What a file with a model of this run says about itself."""
        chosen = self.setup.model
        return saved.about(self.setup.method, chosen.name, chosen.width, self.task.classes, self.spec, self.backbone)

    def whole(self, weights: Record) -> Record:
        """Weights of this run with those of its frozen backbone: all that a model's file needs."""
        if not self.setup.model.frozen:
            return weights
        chosen = self.setup.model
        backbone = open_backbone(chosen.name, chosen.weights, self.setup.size, chosen.sha256)
        held = {f"backbone.{name}": tensor for name, tensor in backbone.network.state_dict().items()}
        return {**held, **weights}

    def write_model(self, path: Path) -> None:
        """Write the model as training left it."""
        saved.write_model(path, clone(self.model.state_dict()), self.about_model())

    def count(self, weights: Mapping[str, torch.Tensor], knowledge: Record, chunk: Chunk) -> Counts:
        """Test weights on a chunk: the counts of every measure."""
        load_weights(self.model, dict(weights))
        return self._counted(chunk, knowledge)

    def _counted(self, chunk: Chunk, knowledge: Record) -> Counts:
        known = {name: tensor.to(self.device) for name, tensor in knowledge.items()}
        data, predict = self.test_data(chunk), self.method.predict
        with one_thread():
            said = answers(self.model, data.images, lambda images: predict(self.model, see(self.model, images), known))
            labels = torch.split(data.labels.to(self.device), BATCH)
            return added(count(self.measures, logits, of) for logits, of in zip(said, labels, strict=True))


class Executor(Protocol):
    """How the work of some clients of a round is done at one place; what comes of it is in their order."""

    def __call__(self, client_type: type[Client], contexts: Iterable[Context]) -> Iterator[tuple[Upload, Record]]:
        """Do it."""
        ...


def sequential(client_type: type[Client], contexts: Iterable[Context]) -> Iterator[tuple[Upload, Record]]:
    """One client after the other on the resident network, whose weights are then those of the last."""
    for context in contexts:
        yield local_update(client_type, context)


def local_update(client_type: type, context: Context) -> tuple[Upload, Record]:
    """Do one client's work of one round. The result depends on the context alone."""
    with one_thread(), torch.random.fork_rng(devices=_cuda_devices(context.device)):
        _seed_all(context)
        upload, memory = client_type(context).update()
        return context.layers.upload(upload, context), cast(Record, memory)


def _seed_all(context: Context) -> None:
    """Seed what layers draw from that have no generator of their own, such as dropout."""
    if context.device.type == "cpu":
        torch.default_generator.manual_seed(context.seed)  # the call below takes notes for all devices: 0.4 ms
    else:
        torch.manual_seed(context.seed)


def _cuda_devices(device: torch.device) -> list[torch.device]:
    return [device] if device.type == "cuda" else []
