"""`deploy check`: is everything there that a run needs?"""

import time
from collections.abc import Callable
from dataclasses import dataclass

from protolith.errors import RunFailed
from protolith.flower.commands import LINK, certificate_ends, flwr, tls_problem
from protolith.flower.plan import Deployment
from protolith.flower.submit import ask_sites

CONNECT = 20.0  # seconds that a site may need from its start to its connection
POLL = 0.5


@dataclass(frozen=True)
class Finding:
    """One thing that was looked at."""

    good: bool
    what: str


def inspect(deployment: Deployment, say: Callable[[str], None]) -> list[Finding]:
    """Look at the server, its certificate and the sites, as far as one gets."""
    for host in dict.fromkeys(("127.0.0.1", deployment.plan.host)):
        if problem := tls_problem(deployment, host):
            return [Finding(False, f"server: {problem}")]
    ends = certificate_ends(deployment)
    where = f"{deployment.plan.host}:{deployment.plan.port}"
    findings = [Finding(True, f"server: up at {where}, certificate valid until {ends:%Y-%m-%d}")]
    status = _settled(deployment, say)
    for site in deployment.plan.sites:
        state = status.get(site, "unregistered")
        meaning = {"online": "registered, authenticated, connected", "unregistered": "its key is not registered"}
        findings.append(Finding(state == "online", f"{site}: {meaning.get(state, 'registered, but not connected')}"))
    if any(finding.good for finding in findings[1:]):
        say("asking the sites for their classes and counts")
        findings += _data(deployment)
    return findings


def _settled(deployment: Deployment, say: Callable[[str], None]) -> dict[str, str]:
    """What the server says of each site's node, once those that were just started had time to connect."""
    deadline, told = time.monotonic() + CONNECT, False
    while True:
        status = _status(deployment)
        late = [site for site in deployment.nodes if status.get(site) not in ("online", None)]
        if not late or time.monotonic() > deadline:
            return status
        if not told:
            say(f"waiting for {', '.join(late)} to connect, up to {CONNECT:.0f} s")
            told = True
        time.sleep(POLL)


def _status(deployment: Deployment) -> dict[str, str]:
    """What the server says of each site's node."""
    listed = flwr(deployment, "supernode", "list", LINK)["nodes"]
    by_number = {int(node["node-id"]): str(node["status"]).lower() for node in listed}
    return {site: by_number[node] for site, node in deployment.nodes.items() if node in by_number}


def _data(deployment: Deployment) -> list[Finding]:
    try:
        answers = ask_sites(deployment)
    except RunFailed as error:
        return [Finding(False, str(error))]
    facts = {site: answer["facts"] for site, answer in answers.items() if not answer["error"]}
    classes = sorted({name for one in facts.values() for name in one["classes"]})
    findings = []
    for site in (name for name in deployment.plan.sites if name in answers):
        if site not in facts:
            findings.append(Finding(False, f"{site}: {answers[site]['error']}"))
            continue
        counts = dict(zip(facts[site]["classes"], facts[site]["per_class"], strict=True))
        by_class = ", ".join(f"{name} {counts.get(name, 0)}" for name in classes)
        text = f"{site}: {facts[site]['train']} training and {facts[site]['test']} test images ({by_class})"
        findings.append(Finding(True, text))
    return findings
