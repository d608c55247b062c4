"""What tests of timm, transformers and torchvision need: operators that a torchvision for another torch lacks."""

import importlib
import importlib.util

import pytest
import torch

OPERATORS = {
    "nms": "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms": "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
}
_DECLARED = []  # operators go when this goes


def library(name):
    """Import a library; where its torchvision was built for another torch, its operators are declared first.

    None of the networks here uses them: torchvision only wants to see them when it is imported.
    """
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed (pip install 'protolith[{name}]')")
    if importlib.util.find_spec("torchvision") is not None:
        try:
            importlib.import_module("torchvision")
        except RuntimeError as error:
            assert "torchvision::nms" in str(error), error
            declared = torch.library.Library("torchvision", "FRAGMENT")
            for line in OPERATORS.values():
                declared.define(line)
            _DECLARED.append(declared)
    return importlib.import_module(name)
