"""FedOpt's server steps against plain loops."""

import math

import pytest
import torch
from baseline_helpers import plain_mean, server, tiny, uploads_for

from protolith.methods.fedavg import is_buffer
from protolith.methods.fedopt import SERVER_LR
from protolith.records import clone


class Plain:
    """The optimisers of Reddi et al., one number at a time."""

    def __init__(self, kind, lr, tau):
        self.kind, self.lr, self.tau = kind, lr, tau
        self.m, self.v = {}, {}

    def step(self, key, theta, delta):
        m = self.m.get(key, 0.0)
        if self.kind == "sgd":
            self.m[key] = 0.9 * m + delta
            return theta + self.lr * self.m[key]
        self.m[key] = 0.9 * m + 0.1 * delta
        v, square = self.v.get(key, self.tau**2), delta * delta
        if self.kind == "adam":
            self.v[key] = 0.99 * v + 0.01 * square
        else:
            self.v[key] = v - 0.01 * square * ((v > square) - (v < square))
        return theta + self.lr * self.m[key] / (math.sqrt(self.v[key]) + self.tau)


@pytest.mark.parametrize("kind", ["sgd", "adam", "yogi"])
@pytest.mark.parametrize("average", ["images", "equal"])
@pytest.mark.parametrize("lr", [0.0, 0.3])
def test_steps_over_rounds(kind, average, lr):
    s = server("fedopt", (4, 10, 6), model=tiny(dtype=torch.float64), optimizer=kind, average=average, server_lr=lr)
    plain = Plain(kind, lr or SERVER_LR[kind], 1e-3)
    for round_, clients in enumerate([[0, 1, 2], [1], [2, 0]]):
        before = clone(s.weights)
        uploads = uploads_for(s, clients, round_)
        s.aggregate(iter(uploads))
        shares = [u.count if average == "images" else 1 for u in uploads]
        mean = plain_mean([u.weights for u in uploads], shares)
        for name, tensor in s.weights.items():
            expected = mean[name]
            if not is_buffer(name):
                pairs = zip(before[name].flatten().tolist(), mean[name].flatten().tolist(), strict=True)
                moved = [plain.step((name, i), old, new - old) for i, (old, new) in enumerate(pairs)]
                expected = torch.tensor(moved, dtype=torch.float64).reshape(tensor.shape)
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-9, atol=1e-9)


def test_sgd_with_rate_one_and_no_momentum_is_fedavg():
    s, f = server("fedopt", (4, 10), server_lr=1.0, beta1=0.0), server("fedavg", (4, 10))
    for one in (s, f):
        one.aggregate(iter(uploads_for(one, [0, 1])))
    for name, tensor in s.weights.items():
        torch.testing.assert_close(tensor, f.weights[name])


@pytest.mark.parametrize("kind", ["sgd", "adam", "yogi"])
def test_models_that_did_not_move_leave_the_global_one_alone(kind):
    s = server("fedopt", (4, 10), optimizer=kind)
    before = clone(s.weights)
    uploads = uploads_for(s, [0, 1])
    for upload in uploads:
        upload.weights.update(before)
    s.aggregate(iter(uploads))
    for name, tensor in s.weights.items():
        torch.testing.assert_close(tensor, before[name])


@pytest.mark.parametrize("kind", ["sgd", "adam", "yogi"])
def test_the_state_holds_the_moments_and_no_more(kind):
    s = server("fedopt", (4, 10), optimizer=kind)
    s.aggregate(iter(uploads_for(s, [0, 1])))
    kinds = {name.split("/")[0] for name in s.extra}
    assert kinds == ({"m"} if kind == "sgd" else {"m", "v"})
    assert not any(is_buffer(name) for name in s.extra)
