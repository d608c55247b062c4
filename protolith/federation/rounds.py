"""The round, from the first step to the last: the file to read first.

    broadcast ─▶ engine.train ─▶ check ─▶ screen ─▶ note ─▶ layers.receive ─▶ server.aggregate ─▶ test ─▶ hooks write

Uploads stream: each goes all the way to the server's mean before the next is taken from the engine, so that memory
holds one model. What has been sent is noted before a layer changes it: a report shows what clients sent.
"""

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice

from protolith.errors import RunFailed
from protolith.federation.coordinator import Coordinator, Metrics
from protolith.federation.engine import Result
from protolith.federation.hooks import Hook
from protolith.federation.intake import Intake
from protolith.records import Broadcast, Upload


def run_rounds(coordinator: Coordinator, hooks: Sequence[Hook]) -> None:
    """Run the rounds that are left."""
    for hook in hooks:
        hook.started(coordinator)
    while not coordinator.over:
        metrics = run_round(coordinator, hooks)
        for hook in hooks:
            hook.round_done(metrics, coordinator)


def run_round(coordinator: Coordinator, hooks: Sequence[Hook] = ()) -> Metrics:
    """Run the next round, and describe it as a line of metrics."""
    c, server, layers, engine = coordinator, coordinator.server, coordinator.layers, coordinator.engine
    round_, began = c.progress.round, time.perf_counter()
    chosen, dropped = c.participants(round_)
    out = c.sitting_out()
    if len(out) == len(c.allocation.clients):
        raise RunFailed(f"all clients sit out: the last {c.setup.guard.strikes} uploads of each were rejected.")
    server.begin(round_)
    intake = Intake(c, chosen)

    def broadcast(client: int) -> Broadcast:  # engines ask when a client's turn has come, some from several threads
        message = c.broadcast(client)
        intake.count_down(message)
        return message

    results = engine.train([c.job(client, round_) for client in chosen], broadcast)
    sound = intake.screened(intake.checked(results))
    uploads = _noted(sound, round_, c, intake, hooks)
    if first := list(islice(uploads, 1)):
        server.aggregate(layers.receive(_each(first, uploads)))
    elif intake.rejected:
        worst = intake.rejected[0]
        raise RunFailed(f"every upload of round {round_ + 1} was rejected; {worst['client']}: {worst['reason']}.")
    trained = time.perf_counter()
    accuracy = c.accuracy() if c.evaluates_in(round_) else {}
    done = time.perf_counter()
    c.progress.round = round_ + 1
    return {
        "round": round_ + 1,
        **accuracy,
        **intake.metrics(),
        "clients": len(chosen),
        "dropped": c.names(dropped),
        "sitting_out": c.names(out),
        "seconds": {"train": trained - began, "evaluate": done - trained},
    }


def _noted(
    results: Iterable[Result], round_: int, coordinator: Coordinator, intake: Intake, hooks: Sequence[Hook]
) -> Iterator[Upload]:
    """Take note of what is accepted, and pass it on."""
    for result in results:
        upload = result.upload
        coordinator.accept(upload, round_, result.remembered)
        intake.add_losses(upload)
        for hook in hooks:
            hook.sent(round_, upload)
        del result  # whoever takes the upload is to be the only one who holds it
        yield upload
        del upload


def _each(first: list[Upload], others: Iterator[Upload]) -> Iterator[Upload]:
    """One upload after the other, none held here once it has been handed over."""
    yield first.pop()
    yield from others
