"""SGD as torch has it, without waiting for torch's compiler."""

import inspect

import torch


class SGD(torch.optim.SGD):
    """torch's own, number for number.

    torch wraps these three so that its compiler leaves them alone, and imports the compiler to say so: a second of
    processor time in every worker, for what is never compiled here.
    """

    add_param_group = inspect.unwrap(torch.optim.Optimizer.add_param_group)
    zero_grad = inspect.unwrap(torch.optim.Optimizer.zero_grad)
    step = torch.no_grad()(inspect.unwrap(torch.optim.SGD.step))
