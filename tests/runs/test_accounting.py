"""ε over the rounds: against the formula written out, and in what a run writes down."""

import json
import math
import sys
from pathlib import Path

import pytest

from protolith.data.protocols import participants
from protolith.errors import UserError
from protolith.runs import accounting, runner
from protolith.runs.accounting import Account, epsilon, in_the_end
from protolith.runs.config import resolve
from protolith.runs.round import Round
from protolith.runs.runner import Observer

PRIVATE = {"method": "fpl", "params": {"proto_pass": "eval_pass"}, "privacy": {"noise": 4.0, "clip": 3.0}}


@pytest.fixture
def package():
    return pytest.importorskip("dp_accounting", reason="the extra is not installed (pip install 'protolith[privacy]')")


def plain_delta(mu, eps):
    """δ(ε) of a Gaussian mechanism whose two outcomes are μ standard deviations apart (Balle and Wang 2018)."""

    def cdf(x):
        return 0.5 * math.erfc(-x / math.sqrt(2))  # exact in the tail, which e^ε magnifies

    return cdf(mu / 2 - eps / mu) - math.exp(eps) * cdf(-mu / 2 - eps / mu)


def plain_epsilon(noise, releases, delta):
    """The same solved for ε by halving: k releases are one with μ = √k / noise."""
    mu, low, high = math.sqrt(releases) / noise, 0.0, 200.0
    for _ in range(200):
        middle = (low + high) / 2
        low, high = (middle, high) if plain_delta(mu, middle) > delta else (low, middle)
    return high


@pytest.mark.parametrize("releases", [1, 2, 50, 400])
@pytest.mark.parametrize("noise", [2.0, 5.0, 20.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5])
def test_epsilon_is_the_formula_written_out(package, noise, releases, delta):
    assert epsilon(noise, releases, delta) == pytest.approx(plain_epsilon(noise, releases, delta), rel=1e-6)


@pytest.mark.parametrize(("noise", "releases"), [(5.0, 1), (5.0, 50), (20.0, 50)])
def test_the_packages_accountants_agree(package, noise, releases):
    from dp_accounting import GaussianDpEvent, pld, rdp

    exact, found = epsilon(noise, releases, 1e-5), {}
    for name, accountant in (("pld", pld.PLDAccountant()), ("rdp", rdp.RdpAccountant())):
        for _ in range(releases if name == "rdp" else 1):  # one by one; the other does it in one step
            accountant.compose(GaussianDpEvent(noise), 1 if name == "rdp" else releases)
        found[name] = accountant.get_epsilon(1e-5)
    assert found["pld"] == pytest.approx(exact, rel=1e-3)
    assert exact <= found["rdp"] <= 1.2 * exact + 0.05  # Rényi's is an upper bound


def test_distributions_composed_round_by_round_agree(package):
    """Without the shortcut by which one Gaussian stands for fifty."""
    from dp_accounting.pld.privacy_loss_distribution import from_gaussian_mechanism

    one = from_gaussian_mechanism(10.0, value_discretization_interval=1e-4)
    assert one.self_compose(50).get_epsilon_for_delta(1e-5) == pytest.approx(epsilon(10.0, 50, 1e-5), rel=5e-3)


def test_the_table_of_the_page_is_right():
    page = (Path(__file__).parents[2] / "docs" / "privacy.md").read_text()
    cells = [line.strip().strip("|").split("|")[1:] for line in page.splitlines() if line.startswith("  | ")]
    noises, added, replaced = ([float(cell) for cell in row] for row in cells)
    assert len(noises) == 6
    for noise, one, other in zip(noises, added, replaced, strict=True):
        assert one == pytest.approx(plain_epsilon(noise, 50, 1e-5), rel=5e-3)
        assert other == pytest.approx(plain_epsilon(noise / math.sqrt(2), 50, 1e-5), rel=5e-3)


def test_nothing_sent_costs_nothing():
    assert epsilon(1.0, 0, 1e-5) == 0.0


def test_more_noise_and_fewer_rounds_cost_less(package):
    values = [epsilon(noise, 50, 1e-5) for noise in (2.0, 4.0, 8.0)]
    assert values == sorted(values, reverse=True)
    values = [epsilon(4.0, releases, 1e-5) for releases in range(1, 20)]
    assert values == sorted(values) and len(set(values)) == 19


def config(**others):
    return resolve([{**PRIVATE, "task": "mini", "rounds": 9, **others}])


def test_each_client_is_counted_by_the_rounds_it_took_part_in(package):
    given = config(protocol={"participation": 0.5, "dropout": 0.2})
    account, counts = Account(given, list("abcdef")), dict.fromkeys(range(6), 0)
    for round_ in range(9):
        for client in participants(6, given.protocol, given.seed, round_)[0]:
            counts[client] += 1
        told = account.after(round_)["privacy"]
        assert told["releases"] == max(counts.values())
        assert told["epsilon"] == pytest.approx(plain_epsilon(4.0, told["releases"], 1e-5), rel=1e-6)
    assert 0 < told["releases"] < 9
    resumed = Account(given, list("abcdef"))
    assert resumed.after(8)["privacy"] == told  # a run that goes on counts the rounds before it too


def test_to_replace_an_image_is_a_larger_change_than_to_add_one(package):
    """Two sums by clip and two counts by one, or one sum by twice the clip: 2 instead of √2."""
    told = Account(config(), ["a"]).after(0)["privacy"]
    assert told["epsilon_replace"] == pytest.approx(plain_epsilon(4.0 / math.sqrt(2), 1, 1e-5), rel=1e-6)
    assert told["epsilon_replace"] > told["epsilon"]


def test_what_a_site_reports_counts_where_it_is_more(package):
    account = Account(config(), ["a", "b"])
    assert account.after(0, {"a": 1, "b": 3})["privacy"]["releases"] == 3
    assert account.after(4, {"a": 2, "b": 3})["privacy"]["releases"] == 5


def test_without_noise_nothing_is_said():
    assert Account(config(privacy={"clip": 2.0}), ["a"]).after(3) == {}
    assert in_the_end([Round(round=1)]) is None and in_the_end([]) is None


def test_without_the_package_a_run_is_refused_before_anything_is_written(monkeypatch, tmp_path, tiny):
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    accounting.epsilon.cache_clear()
    with pytest.raises(UserError, match=r"pip install 'protolith\[privacy\]'"):
        runner.start(resolve([{**tiny, **PRIVATE}]), tmp_path / "run", Observer())
    assert not (tmp_path / "run").exists()


class Crash(BaseException):
    """Nobody catches it, as nobody catches SIGKILL."""


class Heard(Observer):
    def __init__(self, crash_after=None):
        self.crash_after, self.said = crash_after, []

    def say(self, text):
        self.said.append(text)

    def round_done(self, metrics):
        if metrics.round == self.crash_after:
            raise Crash


def test_a_run_says_what_it_cost_and_resumes_to_the_same_bytes(package, tmp_path, tiny):
    given = resolve([{**tiny, **PRIVATE}])
    heard = Heard()
    whole = runner.start(given, tmp_path / "whole", heard)
    lines, summary = whole.metrics(), json.loads((whole.path / "summary.json").read_text())
    assert [line.privacy.releases for line in lines] == [1, 2, 3]
    for line in lines:
        releases = line.privacy.releases
        assert line.privacy.epsilon == pytest.approx(plain_epsilon(4.0, releases, 1e-5), rel=1e-6)
    of = "prototypes and class counts alone, not weights"
    assert summary["privacy"] == {**lines[-1].privacy.to_json(), "of": of}
    assert any("the weights are not protected" in sentence and "ε = " in sentence for sentence in heard.said)
    with pytest.raises(Crash):
        runner.start(given, tmp_path / "crashed", Heard(crash_after=2))
    again = runner.resume(tmp_path / "crashed", Observer(), workers=2)
    assert (again.path / "model.safetensors").read_bytes() == (whole.path / "model.safetensors").read_bytes()
    assert [line.privacy for line in again.metrics()] == [line.privacy for line in lines]
