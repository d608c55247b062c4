"""A device without float64, as Apple's MPS is, where there is none: tensors in main memory, marked as lying on it.

What is moved to "mps", made there, or computed from such tensors lies there, until it is moved to the CPU. Where
float64 meets such a tensor, RuntimeError is raised, also in a move that changes the type on the way (`.to("cpu",
torch.float64)`), for which MPS may convert first. A single number of float64 may be an operand: Python's are.
"""

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

MPS = torch.device("mps")


class WithoutFloat64:
    """As a context, once or several times: the device is there."""

    def __init__(self):
        self.kept = {}  # storages that lie on the device, kept alive so that none takes another's place

    def __enter__(self):
        self.modes = [_Operations(self), _Calls(self)]
        for mode in self.modes:
            mode.__enter__()
        return self

    def __exit__(self, *failure):
        for mode in reversed(self.modes):
            mode.__exit__(*failure)

    def holds(self, tensor):
        return tensor.untyped_storage()._cdata in self.kept

    def take(self, tensor):
        if tensor.dtype == torch.float64:
            raise RuntimeError("MPS has no float64")
        storage = tensor.untyped_storage()
        self.kept[storage._cdata] = storage
        return tensor

    def let_go(self, tensor):
        del self.kept[tensor.untyped_storage()._cdata]
        return tensor


class _Operations(TorchDispatchMode):
    """Sees every operation, those of the backward pass too: what comes of the device's tensors lies there."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        given = _tensors((args, kwargs))
        here = any(self.device.holds(tensor) for tensor in given)
        if here and any(tensor.dtype == torch.float64 and tensor.dim() for tensor in given):
            raise RuntimeError(f"MPS has no float64: an operand of {func}")
        made = func(*args, **(kwargs or {}))
        if here:
            for tensor in _tensors(made):
                self.device.take(tensor)
        return made


class _Calls(TorchFunctionMode):
    """Says where a tensor lies, moves tensors, and makes them on the device."""

    def __init__(self, device):
        super().__init__()
        self.device = device

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        tensor = args[0] if args and isinstance(args[0], torch.Tensor) else None
        if tensor is not None and name == "to":
            return self._moved(tensor, args[1:], kwargs)
        if tensor is not None and self.device.holds(tensor):
            if func == torch.Tensor.device.__get__:
                return MPS
            if name in ("numpy", "__array__"):
                raise RuntimeError("numpy sees no tensor on MPS")
            if name == "cpu":
                return self._moved(tensor, ("cpu",), {})
        if _type(kwargs.get("device")) == "mps":
            return self.device.take(func(*args, **{**kwargs, "device": "cpu"}))
        return func(*args, **kwargs)

    def _moved(self, tensor, args, kwargs):
        """`Tensor.to`, whose aim is a device, a tensor, a type, or a device and a type."""
        named = (kwargs.pop(name, None) for name in ("device", "dtype", "other"))
        aims = [aim for aim in (*args, *named) if isinstance(aim, torch.Tensor | torch.device | torch.dtype | str)]
        dtype, there = tensor.dtype, self.device.holds(tensor)
        for aim in aims:
            if isinstance(aim, torch.Tensor):
                dtype, there = aim.dtype, self.device.holds(aim)
            elif isinstance(aim, torch.dtype):
                dtype = aim
            else:
                there = _type(aim) == "mps"
        if there == self.device.holds(tensor):
            return tensor.to(dtype, **kwargs)
        if torch.float64 in (dtype, tensor.dtype):
            raise RuntimeError("MPS has no float64: a move that begins or ends with it")
        made = tensor.to(dtype, **{**kwargs, "copy": True})
        return self.device.take(made) if there else self.device.let_go(made)


def _tensors(tree):
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _type(aim):
    return None if aim is None else torch.device(aim).type
