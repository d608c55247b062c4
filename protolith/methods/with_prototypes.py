"""What methods with class prototypes share: a client that collects them, a server that receives them.

A set of class prototypes is a tensor [K, d] beside counts [K]; the rows of absent classes are zeros.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from pydantic import Field
from torch import Tensor, nn

from protolith.methods import base, fedavg
from protolith.methods.base import Batch, Context, Output, Spec
from protolith.methods.fedavg import stacked
from protolith.methods.shown import clients_of, shown_clusters
from protolith.models.passes import BATCH, answers
from protolith.models.spec import see
from protolith.prototypes import CLUSTERS, GLOBAL, SENT, ClassMeans, Clusters, PrototypeSet, ema, sent_means
from protolith.records import Record, Upload


class Params(base.Params):
    """Options of every method with class prototypes."""

    proto_pass: Literal["last_epoch_train", "eval_pass"] = Field(
        "last_epoch_train",
        description="local prototypes from the last epoch's training features (as the public code of FPL, and no "
        "extra pass), or from a pass in evaluation mode after training (as the papers' algorithms print it)",
    )


class Client(fedavg.Client):
    """Averages its features by class and sends the means with their counts."""

    shapes_features = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.means: ClassMeans | None = None

    def observe(self, batch: Batch, out: Output) -> None:
        """Collect the last epoch's features, as they were before each step."""
        if self.params.proto_pass == "last_epoch_train" and batch.epoch == self.training.epochs - 1:
            self._collect(out.features, batch.labels)

    def upload(self) -> Upload:
        """Weights and prototypes."""
        if self.params.proto_pass == "eval_pass":
            self.means = None
            self.pass_over_data()
        return super().upload().with_knowledge(**self.prototypes())

    def prototypes(self) -> Record:
        """The mean feature of each class (FPL Eq. 2), and the number of images behind it."""
        assert self.means is not None
        totals = self.context.layers.totals(self.means.sums, self.means.counts, self.context)
        prototypes, counts = sent_means(*totals)
        return {SENT.vectors: prototypes, SENT.beside: counts}

    def pass_over_data(self) -> None:
        """Collect the features of all images in evaluation mode, without augmentation."""
        labels = torch.split(self.data.labels.to(self.device), BATCH)
        for features, of in zip(answers(self.model, self.data.images, self.look_at), labels, strict=True):
            self._collect(features, of)

    def look_at(self, images: Tensor) -> Tensor:
        """The features of some stored images that are collected."""
        features: Tensor = self.model.features(see(self.model, images))
        return features

    def _collect(self, features: Tensor, labels: Tensor) -> None:
        if self.means is None:
            self.means = ClassMeans(self.context.classes, features.shape[1])
        self.means.add(self.context.layers.features(features, self.context), labels)


class Server(fedavg.Server):
    """Expects prototypes and counts in every upload."""

    def schema(self) -> dict[str, Spec]:
        """One row for each class."""
        classes, features = self.roster.classes, self.roster.features
        return {
            "prototypes": Spec((classes, features)),
            "counts": Spec((classes,), torch.int64, least=0, most=max(self.roster.counts)),
        }

    def take_global(self, new: Tensor, present: Tensor, new_weight: float = 1.0) -> None:
        """Make these the global prototypes `global` [K, d] and `present` [K].

        Classes that nobody sent keep the prototype they had; with a `new_weight` below 1 the others move to the
        new one by that much only.
        """
        if GLOBAL.is_in(old := self.knowledge):
            new, present = ema(old[GLOBAL.vectors], old[GLOBAL.beside], new, present, new_weight)
        self.knowledge = {**old, GLOBAL.vectors: new, GLOBAL.beside: present}

    def take_clusters(self, found: Clusters, uploads: Sequence[Upload] = ()) -> None:
        """Make these the cluster prototypes `clusters` [C, d] with `cluster_labels` [C].

        Classes that nobody sent keep the clusters they had. The report shows who is in which where the `uploads` are
        given, whose prototypes [M, K, d] were clustered.
        """
        if uploads:
            self.made = shown_clusters(found, clients_of(uploads)[:, None].expand(found.membership.shape))
        clusters, labels = found.prototypes, found.labels
        if old := PrototypeSet.from_record(self.knowledge, CLUSTERS):
            kept = ~torch.isin(old.labels, labels)
            clusters = torch.cat([clusters, old.vectors[kept]])
            labels = torch.cat([labels, old.labels[kept]])
        self.knowledge = {**self.knowledge, **PrototypeSet(clusters, labels).to_record(CLUSTERS)}

    def problem(self, upload: Upload) -> str | None:
        """Every image of a client is behind one of its prototypes."""
        if self.roster.exact_counts and "counts" in upload.knowledge:
            total = int(upload.knowledge["counts"].sum())
            if total != upload.count:
                return f"claims {upload.count} images, but its counts by class add up to {total}"
        return super().problem(upload)

    def received(self, uploads: Sequence[Upload]) -> tuple[Tensor, Tensor]:
        """All clients' prototypes [M, K, d] and their counts [M, K], made safe where the run says so."""
        return self.pooling.prototypes(stacked(uploads, "prototypes"), stacked(uploads, "counts"))


@contextmanager
def same_statistics(model: nn.Module) -> Iterator[None]:
    """Keep BatchNorm's running statistics as they are during an extra pass in training mode."""
    norms = [m for m in model.modules() if isinstance(m, nn.modules.batchnorm._BatchNorm) and m.track_running_stats]
    for norm in norms:
        norm.track_running_stats = False
    try:
        yield
    finally:
        for norm in norms:
            norm.track_running_stats = True
