"""The server's half, inside Flower: the same loop as everywhere, with the sites as its engine."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from protolith.data.spec import all_tasks
from protolith.errors import RunFailed, UserError
from protolith.federation.local_update import Workplace
from protolith.federation.setup import Setup
from protolith.files import write_text
from protolith.flower.carrier import server_app
from protolith.flower.engine import FlowerEngine, Patience
from protolith.flower.note import RunNote
from protolith.flower.plan import Deployment
from protolith.flower.wire import (
    Exchange,
    Reply,
    Request,
    SiteFacts,
    hollow_task,
    wait_for_return,
    wait_for_sites,
)
from protolith.runs import runner
from protolith.runs.directory import RunDirectory
from protolith.runs.round import Round
from protolith.runs.runner import Observer

OpenExchange = Callable[[Mapping[str, int]], Exchange]


class Log(Observer):
    """Prints to the server's log."""

    def say(self, text: str) -> None:
        """Print a sentence."""
        print(text, flush=True)

    def round_done(self, done: Round) -> None:
        """Print that a round is done."""
        print(f"round {done.round} done in {done.seconds['total']:.1f} s", flush=True)


def serve(settings: Mapping[str, object], open_exchange: OpenExchange) -> None:
    """Do what was submitted: train a run, or ask the sites what they have."""
    deployment = Deployment.open(Path(str(settings["deployment"])))
    exchange, target = open_exchange(deployment.nodes), Path(str(settings["directory"]))
    if settings["job"] == "check":
        replies = describe(exchange, deployment, Setup(task=""))
        answers = {site: {"error": reply.error, **reply.about} for site, reply in replies.items()}
        write_text(target, json.dumps(answers))
        return
    directory = RunDirectory.open(target)
    note = RunNote(directory)
    note.begin()
    try:
        _train(deployment, exchange, directory, note)
    except (UserError, RunFailed) as error:
        note.fail(type(error).__name__, str(error))
    except Exception as error:
        note.fail("RunFailed", f"{type(error).__name__}: {error}")
        raise


def describe(exchange: Exchange, deployment: Deployment, setup: Setup) -> dict[str, Reply]:
    """Ask the sites that are there for their classes and counts, and whether they have what the run computes on."""
    plan, classes = deployment.plan, _classes_of(setup.task)
    there = wait_for_sites(exchange, plan.sites, min(plan.wait, 60.0))
    about = {
        "kind": "describe",
        "classes": classes,
        **setup.model_dump(include={"task", "size", "skip_bad", "device", "model"}),
    }
    about["by_class"] = setup.privacy.noise == 0  # exact counts would undo the noise on them, and no run needs them
    return exchange.ask([Request(site, about) for site in plan.sites if site in there], plan.answer)


def _classes_of(task: str) -> list[str]:
    """The classes of a named task; none where the sites say them."""
    spec = all_tasks().get(task)
    return list(spec.classes) if spec else []


def _train(deployment: Deployment, exchange: Exchange, directory: RunDirectory, note: RunNote) -> None:
    config, plan, observer = directory.config(), deployment.plan, Log()
    if facts := note.facts():
        wait_for_return(exchange, _there_before(directory, plan.sites), plan.wait, note.say)
    else:
        facts = _ask_facts(deployment, exchange, directory, note)
    workplace = Workplace(config, hollow_task(config.task, facts, config.size))
    patience = Patience(plan.quorum, plan.wait, plan.answer)
    engine = FlowerEngine(exchange, config, workplace.allocation, facts, note.run, patience, observer.say)
    runner.go_on(directory, config, workplace, observer, engine)


def _there_before(directory: RunDirectory, sites: list[str]) -> list[str]:
    """The sites that took part when the run was interrupted."""
    lines = directory.metrics()
    missing = {one.site for one in lines[-1].missing} if lines else set()
    return [site for site in sites if site not in missing]


def _ask_facts(deployment: Deployment, exchange: Exchange, directory: RunDirectory, note: RunNote) -> list[SiteFacts]:
    """Learn once, when a run begins, what all sites have; all of them must be there for that."""
    config, sites = directory.config(), deployment.plan.sites
    replies = describe(exchange, deployment, config)
    for site in sites:
        reply = replies.get(site, Reply(site, error="not connected"))
        if reply.error:
            raise RunFailed(f"a run begins when all sites are ready, and {site} is not: {reply.error}")
    facts = [_facts(site, replies[site]) for site in sites]
    # As for a folder of sites where the task is none of ours: the classes of all of them, and a site may lack some.
    classes = tuple(_classes_of(config.task)) or tuple(sorted({name for one in facts for name in one.classes}))
    facts = [replace(one, classes=classes) for one in facts]
    note.keep_facts(facts)
    return facts


def _facts(site: str, reply: Reply) -> SiteFacts:
    """What a site says of itself; it may not speak for another."""
    try:
        facts = SiteFacts.from_plain(reply.about["facts"])
        if facts.name != site:
            raise ValueError("it calls itself by another name")
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise RunFailed(f"{site} sent facts that cannot be used ({error}).") from None
    return facts


app = server_app(serve)
