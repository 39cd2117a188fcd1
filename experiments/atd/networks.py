"""Networks that are compared (extra ``torch``): the paper's CNN with four ways to learn features.

The encoder has the layers of the program of ATD (53,286 parameters for 32 features, as its table
says): a 2 x 2 convolution, two residual blocks, one linear layer. The decoder of the auto-encoders
is ours. Twins are those of the paper, drawn anew for each batch.
"""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from experiments.atd.methods import Seen

BATCH = 128
TEMPERATURE = 0.5
#: The part of the target of BYOL that stays at each step.
KEPT = 0.99
CHANNELS, WIDTH = 18, 32


class _Residual(nn.Module):
    """Two convolutions beside a third, all by steps of two, and a maximum over 4 x 4."""

    def __init__(self, n_in: int, n_out: int, *, pooled: bool) -> None:
        super().__init__()
        self.main = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride=2, padding=1),
            nn.BatchNorm2d(n_out),
            nn.ELU(),
            nn.Conv2d(n_out, n_out, 3, padding=1),
            nn.BatchNorm2d(n_out),
        )
        self.beside = nn.Sequential(
            nn.Conv2d(n_in, n_out, 3, stride=2, padding=1), nn.BatchNorm2d(n_out)
        )
        self.after = nn.Sequential(nn.MaxPool2d(4) if pooled else nn.Identity(), nn.Dropout(0.5))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.after(self.main(x) + self.beside(x))
        return made


def encoder(n_features: int, channels: int = CHANNELS) -> nn.Sequential:
    """Return the paper's CNN for tensors (channels, 33, 33)."""
    return nn.Sequential(
        nn.Conv2d(channels, channels, 2, padding=1),
        nn.BatchNorm2d(channels),
        nn.ELU(),
        _Residual(channels, WIDTH, pooled=False),
        _Residual(WIDTH, WIDTH, pooled=True),
        nn.Flatten(),
        nn.ELU(),
        nn.Linear(4 * WIDTH, n_features),
    )


def decoder(n_features: int, channels: int = CHANNELS) -> nn.Sequential:
    """Return a network from features back to tensors (channels, 33, 33)."""
    return nn.Sequential(
        nn.Linear(n_features, 4 * WIDTH),
        nn.ELU(),
        nn.Unflatten(1, (WIDTH, 2, 2)),
        nn.ConvTranspose2d(WIDTH, 16, 4, stride=4),
        nn.ELU(),
        nn.ConvTranspose2d(16, channels, 5, stride=4),
    )


def contrast(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Return the loss of SimCLR (NT-Xent): each of 2 n features has one partner among the rest."""
    units = functional.normalize(torch.cat([one, other]))
    likeness = units @ units.T / TEMPERATURE
    likeness = likeness.masked_fill(torch.eye(len(units), dtype=torch.bool), -torch.inf)
    n = len(one)
    partners = torch.cat([torch.arange(n, 2 * n), torch.arange(n)])
    return functional.cross_entropy(likeness, partners)


def _agreement(one: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return 2 - 2 * functional.cosine_similarity(one, target.detach()).mean()


def _byol(net: nn.Module, n_features: int) -> tuple[list[nn.Module], Callable[..., Any]]:
    predictor = nn.Sequential(nn.ELU(), nn.Linear(n_features, n_features))
    target = copy.deepcopy(net)

    def loss(own: torch.Tensor, twins: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            for slow, fast in zip(target.parameters(), net.parameters(), strict=True):
                slow.mul_(KEPT).add_(fast, alpha=1 - KEPT)
            far = [target(x) for x in (own, twins)]
        near = [predictor(net(x)) for x in (own, twins)]
        return _agreement(near[0], far[1]) + _agreement(near[1], far[0])

    return [net, predictor], loss


def _simclr(net: nn.Module, _: int) -> tuple[list[nn.Module], Callable[..., Any]]:
    return [net], lambda own, twins: contrast(net(own), net(twins))


def _autoencoder(net: nn.Module, n_features: int) -> tuple[list[nn.Module], Callable[..., Any]]:
    back = decoder(n_features, net[0].in_channels)
    return [net, back], lambda own, _: functional.mse_loss(back(net(own)), own)


def _contrasted(net: nn.Module, n_features: int) -> tuple[list[nn.Module], Callable[..., Any]]:
    back = decoder(n_features, net[0].in_channels)

    def loss(own: torch.Tensor, twins: torch.Tensor) -> torch.Tensor:
        near, far = net(own), net(twins)
        return functional.mse_loss(back(near), own) + contrast(near, far)

    return [net, back], loss


NETWORKS = {"SimCLR": _simclr, "BYOL": _byol, "AE": _autoencoder, "AE_ss": _contrasted}


def learn_network(
    method: str, n_features: int, twins: Any, data: Seen, transform: Any, *, seed: int, epochs: int
) -> tuple[Callable[[Seen], np.ndarray], int]:
    """Return what makes features, and the number of parameters."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    net = encoder(n_features, data.tensors.shape[1])
    parts, loss = NETWORKS[method](net, n_features)

    def losses() -> Iterator[torch.Tensor]:
        for chosen in _batches(len(data.tensors), rng):
            changed = transform(twins(data.signals[chosen], rng))
            yield loss(torch.from_numpy(data.tensors[chosen]), torch.from_numpy(changed))

    _descend(parts, losses, epochs)
    net.eval()
    size = sum(p.numel() for part in parts for p in part.parameters())
    return lambda new: _outputs(net, new.tensors), size


def reference_cnn(
    tensors: np.ndarray, labels: np.ndarray, *, seed: int, steps: int
) -> tuple[Callable[[np.ndarray], np.ndarray], int]:
    """Return a classifier and its size: the CNN with a linear layer, learned from labels alone."""
    torch.manual_seed(seed)
    rng = np.random.default_rng(seed)
    names, numbers = np.unique(labels, return_inverse=True)
    net = nn.Sequential(encoder(WIDTH, tensors.shape[1]), nn.ELU(), nn.Linear(WIDTH, len(names)))

    def losses() -> Iterator[torch.Tensor]:
        for chosen in _batches(len(tensors), rng):
            found = net(torch.from_numpy(tensors[chosen]))
            yield functional.cross_entropy(found, torch.from_numpy(numbers[chosen]))

    _descend([net], losses, max(1, steps // -(-len(tensors) // BATCH)))
    net.eval()
    size = sum(p.numel() for p in net.parameters())
    return lambda new: names[_outputs(net, new).argmax(axis=1)], size


def _batches(n: int, rng: np.random.Generator) -> Iterator[np.ndarray]:
    yield from np.array_split(rng.permutation(n), -(-n // BATCH))


def _descend(
    parts: list[nn.Module], losses: Callable[[], Iterator[torch.Tensor]], epochs: int
) -> None:
    """Take the steps of the paper: Adam, 1e-3, weight decay 5e-4."""
    parameters = [p for part in parts for p in part.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, weight_decay=5e-4)
    for _ in range(epochs):
        for loss in losses():
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


def _outputs(net: nn.Module, tensors: np.ndarray) -> np.ndarray:
    with torch.no_grad():
        parts = [net(part) for part in torch.split(torch.from_numpy(tensors), 4 * BATCH)]
        return np.asarray(torch.cat(parts).numpy())
