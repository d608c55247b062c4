"""Networks: an encoder (`features`) and a linear `head` on top of it."""

from protolith.models.registry import Network, build_model, model_names, register_model
from protolith.models.resnet import ResNet

__all__ = ["Network", "ResNet", "build_model", "model_names", "register_model"]
