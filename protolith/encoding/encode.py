"""Encode once: a decoded task's images through a frozen backbone, kept under a key of all that decides the result."""

import hashlib
import json
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from filelock import FileLock, Timeout
from torch import Tensor

from protolith import records
from protolith.data import cache as decoded
from protolith.data.domain import Domain, Split, Task
from protolith.data.sources.found import Progress, silent
from protolith.data.styles import statistics
from protolith.encoding.encoders import Encoder, Part, all_cores, encoder_for
from protolith.encoding.growing import Growing, sweep
from protolith.encoding.views import VERSION, Views
from protolith.errors import DiskRefused, UserError
from protolith.files import read_text, refusal, write_text
from protolith.machine import cores
from protolith.models.backbones import Backbone, Divided

FORMAT = 1  # raise it when the same images come out differently: older files are then ignored
FOLDER = "encoded"  # in the cache
BATCH = 32  # pictures that the network sees at once
PIECE = 256  # pictures that are lost when a process is killed, at most
WHAT = "file of features"


@dataclass(frozen=True)
class _Block:
    """Some rows of a part of a domain."""

    prefix: str  # of the part's tensors in the file
    split: Split
    start: int
    stop: int
    drawn: Tensor  # [views, n, …] of the part, no views for a test part


def encode_task(
    task: Task,
    backbone: Backbone,
    part: Part = "features",
    views: Views = Views(),  # noqa: B008  it is frozen
    cache: Path | None = None,
    progress: Progress | None = None,
) -> Task:
    """Encode a decoded task's images, or find them encoded; the features are mapped from a file.

    Training images have [n, 1 + views.count, …], test images [n, 1, …]: pooled features in float32, or the maps before
    the last stage in float16.
    """
    if any(split.encoded for domain in task.domains for split in (domain.train, domain.test)):
        raise ValueError(f"task {task.name} is encoded already")
    say = progress or silent
    if part == "maps" and not isinstance(backbone.network, Divided):
        raise UserError(f"backbone {backbone.name} has no last stage that can be trained alone: encode its features.")
    folder = decoded.folder(cache) / FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"{decoded.stem(task.name, task.size)}{_key(task, backbone, part, views, folder)}.safetensors"
        if (found := decoded.read_if_good(path, say, WHAT)) is not None:
            return found
        with _alone(path, task.name, say):
            if (found := decoded.read_if_good(path, silent, WHAT)) is None:
                _encode(path, task, backbone, part, views, say)
                found = decoded.read(path)
            return found
    except OSError as error:
        if (reason := refusal(error)) is None:
            raise
        raise DiskRefused(
            f"the features of {task.name} cannot be written ({reason}): make room there, or set PROTOLITH_CACHE to a "
            "folder that can be written."
        ) from None


def about_encoded(path: Path) -> dict[str, Any]:
    """What a file of features says of backbone, part, views and encoder; empty for a decoded task."""
    return dict(records.read_about(path).get("encoded", {}))


def _encode(path: Path, task: Task, backbone: Backbone, part: Part, views: Views, say: Progress) -> None:
    """Fill the file, block by block."""
    sweep(path.parent)
    with all_cores():
        encoder = encoder_for(backbone, part, task.size, path.parent, _weights(backbone), say)
        made = _Made(task, backbone, part, views, encoder)
        growing = Growing(path, decoded.record_of(made.outline), made.about())
        growing.begin()
        todo = [
            block for block in made.blocks() if growing.place(f"{block.prefix}/images", block.start) not in growing.done
        ]
        meter = _Meter(f"encoding {task.name} by {encoder.name}", made.pictures, made.count(todo), say)
        for name, tensor in decoded.record_of(task).items():
            if name.endswith("/labels") and len(tensor):
                growing.put(0, {name: tensor})
        for block, pictures, colours in _ahead(todo, views):
            try:
                features = made.encoded(block, pictures)
            except UserError:  # it can never be complete
                growing.discard()
                raise
            growing.put(block.start, {f"{block.prefix}/images": features, f"{block.prefix}/colours": colours})
            meter.add(pictures.shape[0] * pictures.shape[1])
    growing.finish()


class _Made:
    """What is to be made of a task's images, and how."""

    def __init__(self, task: Task, backbone: Backbone, part: Part, views: Views, encoder: Encoder) -> None:
        self.task, self.backbone, self.part, self.views, self.encoder = task, backbone, part, views, encoder
        self.kind = torch.float32 if part == "features" else torch.float16
        self.shape = encoder.encode(torch.zeros(1, task.size, task.size, 3, dtype=torch.uint8)).shape[1:]
        domains = tuple(
            Domain(domain.name, self._empty(domain.train, views.count), self._empty(domain.test, 0))
            for domain in task.domains
        )
        note = f"{part} of {backbone.name} by {encoder.name}"
        self.outline = Task(task.name, task.classes, domains, (*task.notes, note))

    def _empty(self, split: Split, views: int) -> Split:
        n = len(split)
        images = torch.empty(n, 1 + views, *self.shape, dtype=self.kind, device="meta")
        return Split(images, split.labels, torch.empty(n, 6, device="meta"))

    def about(self) -> dict[str, Any]:
        """What the file says about itself."""
        return decoded.about(self.outline, {}) | {
            "encoded": {
                "format": FORMAT, "backbone": self.backbone.about(), "part": self.part, "encoder": self.encoder.name,
                "views": list(self.views.named), "views_version": VERSION,
            }
        }  # fmt: skip

    def blocks(self) -> Iterator[_Block]:
        """All the work, in an order and in pieces that never change."""
        for index, domain in enumerate(self.task.domains):
            for name, split, views in (("train", domain.train, self.views), ("test", domain.test, Views())):
                drawn = views.draw(domain.name, len(split))
                step = max(1, PIECE // (1 + views.count))
                for start in range(0, len(split), step):
                    yield _Block(f"{index}/{name}", split, start, min(start + step, len(split)), drawn)

    def count(self, blocks: Sequence[_Block]) -> int:
        """The pictures of some blocks."""
        return sum((block.stop - block.start) * (1 + len(block.drawn)) for block in blocks)

    @property
    def pictures(self) -> int:
        """All pictures: images and their views."""
        return sum(len(d.train) * (1 + self.views.count) + len(d.test) for d in self.task.domains)

    def encoded(self, block: _Block, pictures: Tensor) -> Tensor:
        """The features of a block's pictures [n, views, h, w, 3], which must be numbers."""
        flat = pictures.flatten(0, 1)
        found = torch.cat([self.encoder.encode(batch) for batch in torch.split(flat, BATCH)]).to(self.kind)
        features = found.view(*pictures.shape[:2], *self.shape)
        if not records.all_finite(features):
            bad = int(torch.isfinite(features.flatten(1)).all(dim=1).logical_not().nonzero()[0])
            domain = self.task.domains[int(block.prefix.partition("/")[0])].name
            raise UserError(
                f"backbone {self.backbone.name}: its {self.part} of image {block.start + bad} of {domain} are not "
                "finite (NaN or infinite), so its weights are bad or too large for these images."
            )
        return features


def _ahead(blocks: Sequence[_Block], views: Views) -> Iterator[tuple[_Block, Tensor, Tensor]]:
    """Blocks with their pictures and colours; the next one is read and altered while this one is encoded."""

    def prepared(block: _Block) -> tuple[Tensor, Tensor]:
        images = block.split.images[block.start : block.stop]
        altered = views if len(block.drawn) else Views()
        return altered.of(images, block.drawn[:, block.start : block.stop]), statistics(images)

    with ThreadPoolExecutor(1) as pool:
        coming = None
        for block in blocks[:1]:
            coming = pool.submit(prepared, block)
        for position, block in enumerate(blocks):
            assert coming is not None
            pictures, colours = coming.result()
            if position + 1 < len(blocks):
                coming = pool.submit(prepared, blocks[position + 1])
            yield block, pictures, colours


class _Meter:
    """Says, at most once a second, how many pictures are done and how long the others will take."""

    def __init__(self, what: str, total: int, left: int, say: Progress) -> None:
        self.what, self.total, self.left, self.say = what, total, left, say
        self.began = self.last = time.monotonic()
        self.first = total - left
        say(f"{what}: {total:,} pictures" + (f", {self.first:,} of them done before" if self.first else ""))

    def add(self, count: int) -> None:
        """So many more are done."""
        self.left -= count
        now = time.monotonic()
        if self.left and now - self.last < 1:
            return
        self.last = now
        done = self.total - self.left
        seconds = (now - self.began) / (done - self.first) * self.left
        end = f"about {seconds:.0f} s left" if self.left else f"in {now - self.began:.1f} s"
        self.say(f"{self.what}: {done:,} of {self.total:,} pictures, {end}")


@contextmanager
def _alone(path: Path, task: str, say: Progress) -> Iterator[None]:
    """Hold the lock of a file; who comes second waits, and says so."""
    lock = FileLock(str(path.with_name(f".{path.name}.lock")))
    try:
        lock.acquire(timeout=0)
    except Timeout:
        say(f"another process is encoding the same images of {task}: waiting for it")
        lock.acquire(poll_interval=0.2)
    try:
        yield
    finally:
        lock.release()


def _key(task: Task, backbone: Backbone, part: Part, views: Views, folder: Path) -> str:
    """A digest of everything that decides the features, and of what is kept beside them."""
    labels = hashlib.sha256()
    for domain in task.domains:
        for split in (domain.train, domain.test):
            labels.update(split.labels.contiguous().numpy().data)
    parts = [
        FORMAT, decoded.FORMAT, _images(task, folder), labels.hexdigest(), task.name, task.classes, task.notes,
        [(domain.name, len(domain.train)) for domain in task.domains], backbone.name, _weights(backbone),
        backbone.spec.plain(), part, [VERSION, *views.named] if views.count else [],
    ]  # fmt: skip
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _weights(backbone: Backbone) -> str:
    """The SHA-256 of a backbone's weights, of its tensors where they come from no file."""
    if backbone.sha256:
        return backbone.sha256
    digest = hashlib.sha256()
    for name, tensor in sorted(backbone.network.state_dict().items()):
        digest.update(name.encode() + tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()


def _images(task: Task, folder: Path) -> str:
    """The SHA-256 of all decoded images; that of a decoded file is noted, so that it is read through but once."""
    note, stamp = None, ""
    if task.file is not None:
        found = task.file.stat()
        stamp = f"{found.st_size} {found.st_mtime_ns} {found.st_ino}"
        note = folder / f"{task.file.stem}.sha256"
        with suppress(OSError, ValueError):
            known, _, digest = read_text(note, 1000).strip().rpartition(" ")
            if known == stamp and len(digest) == 64:
                return digest
    splits = [split for domain in task.domains for split in (domain.train, domain.test)]
    with ThreadPoolExecutor(cores()) as pool:
        digests = list(pool.map(_of_pixels, splits))
    digest = hashlib.sha256("".join(digests).encode()).hexdigest()
    if note is not None:
        write_text(note, f"{stamp} {digest}\n")
    return digest


def _of_pixels(split: Split) -> str:
    pixels = split.images.contiguous()
    digest = hashlib.sha256(f"{list(pixels.shape)}".encode())
    if pixels.numel():
        digest.update(pixels.numpy().data)
    return digest.hexdigest()
