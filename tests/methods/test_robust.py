"""Robust rules against plain loops of float64, on random and awkward inputs; and with every method."""

import math
import statistics

import pytest
import torch
from helpers import Together

from protolith.errors import UserError
from protolith.federation.layers.robust import Robust, RobustMean, moderate, settle
from protolith.federation.layers.styles import STYLE
from protolith.federation.local_update import Workplace
from protolith.methods.registry import all_methods
from protolith.records import is_finite
from protolith.runs.config import complete_for, resolve

RULES = ["clip", "trimmed", "median", "geometric-median", "multi-krum"]


def draw(count, dim, seed=0):
    return torch.randn(count, dim, generator=torch.Generator().manual_seed(seed)).tolist()


CASES = {
    "random": draw(7, 5),
    "even": draw(6, 4, seed=1),
    "three": draw(3, 4, seed=2),
    "two clients": draw(2, 4, seed=3),
    "one client": draw(1, 4, seed=4),
    "identical": draw(1, 4, seed=5) * 6,
    "half identical": draw(1, 4, seed=5) * 3 + draw(3, 4, seed=6),
    "one far": [*draw(6, 5, seed=7), [1e6, -1e6, 1e6, 0.0, 1e3]],
    "zeros": [[0.0] * 3] * 4,
}


def distance(a, b):
    return math.sqrt(sum((x - y) ** 2 for x, y in zip(a, b, strict=True)))


def expected_bad(share, count):
    bad = 0
    while bad < share * count - 1e-9 and 2 * (bad + 1) < count:
        bad += 1
    return bad


def plain_median(points):
    return [statistics.median(column) for column in zip(*points, strict=True)]


def plain_krum(points, bad):
    """The indices that stay."""
    if bad == 0:
        return list(range(len(points)))
    scores = []
    for i, point in enumerate(points):
        others = sorted(distance(point, other) ** 2 for j, other in enumerate(points) if j != i)
        scores.append((sum(others[: max(1, len(points) - bad - 2)]), i))
    return sorted(i for _, i in sorted(scores)[: len(points) - bad])


def plain_weighted(points, weights):
    total = sum(weights)
    return [sum(w * v for w, v in zip(weights, column, strict=True)) / total for column in zip(*points, strict=True)]


def plain_clipped(points, origin, bad):
    norms = [distance(point, origin) for point in points]
    limit = sorted(norms)[len(points) - 1 - bad]
    return [
        [o + (v - o) * (limit / norm if norm > limit else 1.0) for v, o in zip(point, origin, strict=True)]
        for point, norm in zip(points, norms, strict=True)
    ]


def plain_trimmed(points, weights, bad):
    found = []
    for column in zip(*points, strict=True):
        kept = sorted(zip(column, range(len(column)), strict=True))[bad : len(column) - bad]
        found.append(sum(v * weights[i] for v, i in kept) / sum(weights[i] for _, i in kept))
    return found


def plain_rule(kind, points, weights, bad, origin):
    if kind == "clip":
        return plain_weighted(plain_clipped(points, origin, bad), weights)
    if kind == "trimmed":
        return plain_trimmed(points, weights, bad)
    if kind == "median":
        return plain_median(points)
    chosen = plain_krum(points, bad)
    return plain_weighted([points[i] for i in chosen], [weights[i] for i in chosen])


def records_of(points):
    """Points as records of two parameters, of float64 so that the comparison is exact."""
    return [
        {"a": torch.tensor(p[:2], dtype=torch.float64), "b": torch.tensor(p[2:], dtype=torch.float64)[None]}
        for p in points
    ]


def made_by(robust, points, weights, origin):
    mean = RobustMean(robust, records_of([origin])[0])
    for record, weight in zip(records_of(points), weights, strict=True):
        mean.add(record, weight)
    made = mean.mean()
    assert made["b"].shape == (1, len(origin) - 2)
    return [*made["a"].tolist(), *made["b"][0].tolist()]


@pytest.mark.parametrize("share", [0.0, 0.2, 0.45])
@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", [rule for rule in RULES if rule != "geometric-median"])
def test_the_rule_for_weights(kind, name, share):
    points = CASES[name]
    weights = [1.0 + 3.0 * (i % 3) for i in range(len(points))]
    origin = draw(1, len(points[0]), seed=9)[0]
    made = made_by(Robust(kind, share), points, weights, origin)
    assert made == pytest.approx(
        plain_rule(kind, points, weights, expected_bad(share, len(points)), origin), rel=1e-9, abs=1e-9
    )


@pytest.mark.parametrize("name", CASES)
def test_the_geometric_median_has_the_least_sum_of_distances(name):
    points = CASES[name]
    made = made_by(Robust("geometric-median"), points, [1.0] * len(points), [0.0] * len(points[0]))

    def total(point):
        return sum(distance(point, other) for other in points)

    best = total(made)
    rng = torch.Generator().manual_seed(0)
    for step in (1e-3, 1e-1, 1.0):
        for _ in range(50):
            near = [v + step * s for v, s in zip(made, torch.randn(len(made), generator=rng).tolist(), strict=True)]
            assert total(near) >= best - 1e-6
    assert all(total(point) >= best - 1e-6 for point in points)


@pytest.mark.parametrize("kind", RULES)
@pytest.mark.parametrize("far", [1e3, 1e12])
def test_far_outliers_do_not_carry_the_aggregate_away(kind, far):
    """Two of nine are far out, on the same side: what is made stays where the good ones are."""
    good = draw(7, 4, seed=11)
    made = made_by(Robust(kind, 0.2), [*good, [far] * 4, [far] * 4], [1.0] * 9, [0.0] * 4)
    if kind == "clip":  # its bound is a norm: that of the longest good move
        assert distance(made, [0.0] * 4) <= max(distance(point, [0.0] * 4) for point in good)
    elif kind == "geometric-median":
        centre = plain_median(good)
        assert distance(made, centre) <= 2 * max(distance(point, centre) for point in good)
    else:
        for value, column in zip(made, zip(*good, strict=True), strict=True):
            assert min(column) - 1e-12 <= value <= max(column) + 1e-12
    if kind == "multi-krum":
        assert made == pytest.approx(plain_weighted(good, [1.0] * 7))


@pytest.mark.parametrize("kind", RULES)
def test_statistics_are_judged_apart_from_parameters_and_integers_are_truncated(kind):
    rng = torch.Generator().manual_seed(3)
    records = [
        {
            "w": torch.randn(3, generator=rng),
            "bn.running_var": torch.rand(3, generator=rng),
            "bn.num_batches_tracked": torch.tensor(number),
        }
        for number in (4, 4, 5, 5, 4)
    ]
    records[1]["bn.running_var"] = torch.full((3,), 1e6)
    alone, both = Robust(kind, 0.2).averaging(), Robust(kind, 0.2).averaging()
    for record in records:
        alone.add({"w": record["w"]}, 1.0)
        both.add(record, 1.0)
    made = both.mean()
    assert list(made) == list(records[0]) and torch.equal(made["w"], alone.mean()["w"])
    assert float(made["bn.running_var"].max()) < 2 and made["bn.num_batches_tracked"].dtype == torch.int64
    assert made["w"].dtype == torch.float32 and both.weight == 5.0


def test_nothing_came_and_nothing_counts():
    for kind in ("mean", *RULES):
        mean = Robust(kind).averaging()
        assert mean.mean() == {}
        mean.add({"w": torch.ones(1)}, 0.0)
        assert mean.mean() == {} and mean.weight == 0.0


@pytest.mark.parametrize("name", CASES)
@pytest.mark.parametrize("kind", RULES)
def test_the_rule_for_prototypes(kind, name):
    """Class 0 is held by all, class 1 by nobody, class 2 by the first and the last."""
    points = CASES[name]
    count = len(points)
    prototypes = torch.zeros(count, 3, len(points[0]), dtype=torch.float64)
    counts = torch.zeros(count, 3, dtype=torch.int64)
    prototypes[:, 0], counts[:, 0] = torch.tensor(points, dtype=torch.float64), 5
    for m in {0, count - 1}:
        prototypes[m, 2], counts[m, 2] = prototypes[m, 0] * 2, 1
    made, kept = Robust(kind, 0.2).prototypes(prototypes, counts)
    bad = expected_bad(0.2, count)
    centre = plain_median(points)
    if kind == "clip":
        expected = plain_clipped(points, centre, bad)
    elif kind == "trimmed":
        columns = [sorted(column) for column in zip(*points, strict=True)]
        bounds = [(column[bad], column[count - 1 - bad]) for column in columns]
        expected = [[min(max(v, b[0]), b[1]) for v, b in zip(p, bounds, strict=True)] for p in points]
    elif kind == "median":
        expected = [centre] * count
    elif kind == "geometric-median":
        one = made_by(Robust(kind), points, [1.0] * count, [0.0] * len(centre))
        expected = [one] * count
    else:
        chosen = plain_krum(points, bad)
        assert (kept[:, 0] > 0).nonzero().squeeze(1).tolist() == chosen
        mean = plain_weighted([points[i] for i in chosen], [1.0] * len(chosen))
        expected = [points[i] if i in chosen else mean for i in range(count)]
    torch.testing.assert_close(made[:, 0], torch.tensor(expected, dtype=torch.float64), rtol=1e-9, atol=1e-9)
    assert int(kept[:, 1].sum()) == 0 and not made[:, 1].any()
    assert (kept[:, 2] > 0).sum() == (counts[:, 2] > 0).sum()  # of two, nobody can say who is bad
    if kind != "multi-krum":
        assert torch.equal(kept, counts)
    assert float(prototypes[0, 0, 0]) == points[0][0]  # what was given is as it was


def test_several_points_of_a_client_stay_within_the_others_reach():
    """FedPLVM: one client's two points lie far out on either side of the centre, so that their mean is harmless."""
    rng = torch.Generator().manual_seed(0)
    honest = torch.randn(8, 3, generator=rng)
    points = torch.cat([honest, torch.full((1, 3), 1e4), torch.full((1, 3), -1e4)])
    labels, senders = torch.zeros(10, dtype=torch.int64), torch.tensor([0, 0, 1, 1, 2, 2, 3, 3, 4, 4])
    made = Robust("median", 0.2).within_reach(points, labels, senders)
    assert torch.allclose(made[:8], honest) and made.dtype == points.dtype
    means = [points[senders == m].double().mean(0).tolist() for m in range(5)]
    centre = plain_median(means)
    reach = max(distance(point, centre) for point in honest.tolist())
    assert all(distance(point, centre) == pytest.approx(reach, rel=1e-5) for point in made[8:].tolist())


@pytest.fixture(scope="module")
def task():
    from protolith.data.tasks import load_task

    return load_task("mini")


@pytest.mark.parametrize("method", sorted(all_methods()))
def test_every_method_composes_or_is_refused(method, task):
    """One real round of uploads; one of them is then far off, and no rule lets it carry anything away."""
    values = {
        "method": method, "task": "mini", "rounds": 3, "workers": 0, "model": {"width": 4},
        "training": {"epochs": 1, "batch": 16}, "protocol": {"clients": {"pen": 3, "print": 3}, "samples": 16},
    }  # fmt: skip
    plain = Workplace(complete_for(resolve([values]), task), task)
    first = plain.server()
    uploads = [plain.update(m, 0, first.broadcast(m), {})[0] for m in range(6)]
    for name, tensor in (*uploads[2].weights.items(), *uploads[2].knowledge.items()):
        if name == STYLE:
            tensor.fill_(1.0)  # as far off as the guard lets it be
        elif tensor.is_floating_point() and tensor.dim():
            tensor.mul_(1e6)
    for kind in RULES:
        config = complete_for(resolve([{**values, "robust": kind}]), task)
        if method == "solo" or (method in ("fedga", "strata") and "median" in kind):
            with pytest.raises(UserError, match=f"robust = '{kind}' is not for {method}: (its|weights) .*"):
                Workplace(config, task)
            continue
        together = Together.of(Workplace(config, task))
        assert all(together.problem(upload) is None for upload in uploads)
        together.aggregate(uploads)
        state = {**together.server.state(), **together.layers.state()}
        assert is_finite(state)
        for name, tensor in state.items():
            assert float(tensor.double().abs().max() if tensor.numel() else 0) < 1e4, (kind, name)


UNKNOWN = {
    "a rule": lambda: Robust("krum"),
    "of weights": lambda: settle([torch.ones(3, 2)], torch.ones(3), 1, "krum", [torch.zeros(2)]),
    "of points": lambda: moderate(torch.ones(3, 2), 1, "krum"),
}


@pytest.mark.parametrize("where", UNKNOWN)
def test_a_rule_that_does_not_exist_is_refused_and_never_the_mean(where):
    with pytest.raises(UserError, match=r"unknown robust rule 'krum'\. .*Allowed: .*multi-krum"):
        UNKNOWN[where]()


def robust_run(task, kind, **values):
    return Workplace(
        complete_for(resolve([{"task": "mini", "robust": kind, "model": {"width": 4}, **values}]), task), task
    )


BALANCE = {"training": {"style_balance": True, "style_exchange": 0.5}}


@pytest.mark.parametrize(
    "values", [{"method": "strata"}, {"method": "fpl", **BALANCE}, {"method": "fedavg", **BALANCE}]
)
def test_a_rule_that_counts_clients_alike_is_refused_where_styles_are_to_count_alike(values, task):
    for kind in ("median", "geometric-median"):
        said = f"robust = '{kind}' is not for {values['method']}: weights that make every style count alike would have"
        with pytest.raises(UserError, match=said):
            robust_run(task, kind, **values)
    for kind in ("clip", "trimmed", "multi-krum"):
        robust_run(task, kind, **values)


def test_without_balance_strata_takes_every_rule(task):
    for kind in RULES:
        robust_run(task, kind, method="strata", params={"balance": False})
