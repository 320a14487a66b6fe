"""What the promotion is timed on: the states of a cycle's verified rows, of every layer that has some."""

from __future__ import annotations

import torch

from optimized.cases import Contest
from optimized.reference_cycle import state_layer
from optimized.reference_cycle.settings import Settings
from optimized.reference_cycle.state_layer import StateLayer
from optimized.reference_cycle.weights import Weights
from optimized.state_commit.promotion import Promotion


def contest(settings: Settings) -> Contest:
    """A full batch's commit; of a geometry without such layers, what it would be if all its layers were."""
    geometry, batch, device = settings.geometry, settings.batch, settings.device
    weights = Weights(settings.seed, device, settings.torch_dtype)
    count, rows = len(geometry.state_layers) or geometry.layers, max(2 * settings.speculative, 1)
    layers = [
        StateLayer.create(geometry.state, geometry.hidden, batch + 1, weights.of(str(index))) for index in range(count)
    ]
    slots = torch.arange(batch - 1, -1, -1, device=device)
    counts = torch.arange(batch, device=device) % (settings.speculative + 1) + 1
    drawn = torch.randn(batch, rows, geometry.hidden, generator=torch.Generator().manual_seed(7))
    states = [layer(drawn.to(device, settings.torch_dtype), slots)[1] for layer in layers]
    promotion = Promotion(layers)
    kept = [part[:-1] for layer in layers for part in (layer.convolution_state, layer.ssm_state)]
    return Contest(
        "the states after the last accepted token, of all layers",
        stock=lambda: state_layer.commit(layers, states, slots, counts),
        fast=lambda: promotion.promote(states, slots, counts),
        read=(slots, counts, *kept),
        written=tuple(kept),
    )
