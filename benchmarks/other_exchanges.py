"""Two other things that sites could exchange in the place of colours, tried for Strata in `choices.py`.

Statistics of an early feature map, and low-frequency amplitudes of images. All clients are in one process here, and
what they would send stands in a table: this finds out what it would be worth, it is no method.
"""

import torch
from torch import Tensor

from protolith.federation.layers import styles
from protolith.federation.layers.styles import StylesLayer
from protolith.methods.base import Context
from protolith.methods.fedavg import Client

RADIUS = 1  # frequencies whose amplitude is exchanged, in each direction

Moments = tuple[Tensor, Tensor]  # mean and deviation over a client's images


class Table:
    """What the clients sent, by round."""

    def __init__(self) -> None:
        self.sent: dict[int, dict[int, tuple[int, Moments]]] = {}

    def put(self, client: Context, moments: Moments) -> None:
        """Send moments to everybody, with the client's pseudo-domain."""
        own = int(client.knowledge.get(styles.OWN, torch.tensor(-1)))
        self.sent.setdefault(client.round, {})[client.client] = (own, moments)

    def draw(self, client: Context, images: int) -> Tensor | None:
        """For each image values of another pseudo-domain that came in the last round; nothing where there are none."""
        own = client.knowledge.get(styles.OWN)
        last = self.sent.get(client.round - 1, {})
        others: dict[int, list[Moments]] = {}
        for domain, moments in last.values():
            if own is not None and domain != int(own) and domain >= 0:
                others.setdefault(domain, []).append(moments)
        if not others:
            return None
        rows = []
        for domain in torch.randint(len(others), (images,), generator=client.rng).tolist():
            members = list(others.values())[domain]
            mean, deviation = members[int(torch.randint(len(members), (1,), generator=client.rng))]
            rows.append(mean + deviation * torch.randn(mean.shape, generator=client.rng))
        return torch.stack(rows).clamp_min(0.0)


def amount(client: Context, images: int, probability: float) -> Tensor:
    """How far each image goes to its target: 0 for those that are left alone."""
    chosen = torch.rand(images, generator=client.rng) < probability
    return torch.rand(images, generator=client.rng) * chosen


def moments(values: Tensor) -> Moments:
    """Mean and deviation over the images."""
    deviation, mean = torch.std_mean(values, dim=0, correction=0)
    return mean, deviation


def exchange_amplitudes(probability: float = 0.8) -> None:
    """Let clients give their images the low-frequency amplitudes of other sites, and keep the phases."""
    table = Table()
    rows = torch.arange(-RADIUS, RADIUS + 1)

    def spectrum(images: Tensor) -> Tensor:
        return torch.fft.rfft2(images.float() / 255.0, dim=(1, 2))

    def low(spectra: Tensor) -> Tensor:
        return spectra[:, rows, : RADIUS + 1].abs()

    def restyle(self: StylesLayer, images: Tensor, client: Context) -> Tensor:
        if client.client not in table.sent.get(client.round, {}):
            table.put(client, moments(low(spectrum(client.data.images))))
        target = table.draw(client, len(images))
        if target is None:
            return images
        target[:, :RADIUS, 0] = target[:, RADIUS + 1 :, 0].flip(1)  # those of a real image are the same
        spectra = spectrum(images)
        own = low(spectra)
        new = torch.lerp(own, target, amount(client, len(images), probability).view(-1, 1, 1, 1))
        spectra[:, rows, : RADIUS + 1] *= new / own.clamp_min(1e-6)
        pixels = torch.fft.irfft2(spectra, s=images.shape[1:3], dim=(1, 2))
        return (pixels * 255.0).round_().clamp_(0, 255).to(torch.uint8)

    StylesLayer.images = restyle


def exchange_features(probability: float = 0.8) -> None:
    """Let clients give the maps behind the first stage the channel means and deviations of other sites."""
    table = Table()

    plain = Client.train

    def train(self: Client) -> None:
        seen: list[Tensor] = []

        def hook(module: torch.nn.Module, inputs: object, maps: Tensor) -> Tensor:
            deviation, mean = torch.std_mean(maps, dim=(2, 3), correction=0)
            own = torch.stack([mean, deviation], dim=1)
            seen.append(own.detach())
            target = table.draw(self.context, len(maps))
            if target is None:
                return maps
            new = torch.lerp(own.detach(), target, amount(self.context, len(maps), probability).view(-1, 1, 1))
            scale = new[:, 1] / own[:, 1].clamp_min(1e-3)
            return (maps - mean[..., None, None]) * scale[..., None, None] + new[:, 0, :, None, None]

        handle = self.model.layer1.register_forward_hook(hook)
        plain(self)
        handle.remove()
        last = len(seen) // self.training.epochs  # batches of the last epoch
        table.put(self.context, moments(torch.cat(seen[-last:])))

    Client.train = train
