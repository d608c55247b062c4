"""What `privacy` cannot protect is refused, never sent unprotected in silence."""

from typing import Any

from protolith.errors import UserError
from protolith.methods.registry import Method, all_methods
from protolith.methods.with_prototypes import Client
from protolith.prototypes.privacy import Privacy


def refuse_unprotected(privacy: Privacy, method: Method, params: Any) -> None:
    """Refuse a method whose uploads hold more of the images than clipped class sums (and the weights)."""
    if not privacy.asked:
        return
    if not method.protects:
        able = ", ".join(name for name, other in all_methods().items() if other.protects)
        why = "sends no prototypes, and weights are not protected"
        if issubclass(method.client, Client):
            why = "sends more than class means, or the class means of a network that stays with the client"
        raise UserError(f"privacy is not for method '{method.name}', which {why}; it is for {able}.")
    if privacy.noise > 0 and params.proto_pass != "eval_pass":
        raise UserError(
            "privacy.noise needs params.proto_pass = 'eval_pass': in a training pass BatchNorm lets an image change "
            "the features of all others in its batch, so that clipping does not bound what it changes."
        )
