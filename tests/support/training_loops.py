"""What PyTorch makes of a training loop, written out: hooks, cross_entropy, torch's AdamW, clipping, warm-up and decay."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch
from torch.nn import functional

from edgepeft.backbones.hooks import load_model
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta
from edgepeft.data.batches import epoch_batches
from edgepeft.data.training_loop.run import TrainingLoop


def steps_beside_pytorchs(
    loop: TrainingLoop, delta: Delta, backbone: Backbone, n: int, *, rates: tuple[float, float], warm: int, decay: float
) -> Iterator[float]:
    """Do the first ``n`` steps of a training loop, of 16 rows each from seed 3, and PyTorch's too; gives PyTorch's losses.

    ``rates`` are of the modules and of the head.
    """
    steps, model, named = loop.total, load_model(backbone, "eager"), delta.tensors()
    groups = [
        {"params": [p for name, p in named.items() if name.startswith("head/") == head], "lr": rate}
        for head, rate in zip((False, True), rates, strict=True)
    ]
    optimizer = torch.optim.AdamW(groups, weight_decay=decay)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda i: i / warm if i < warm else (steps - i) / (steps - warm)
    )
    rows = loop.rows["train"]
    batches = (batch for epoch in range(steps) for batch in epoch_batches(rows.lengths, 16, 3, epoch))
    for chosen in islice(batches, n):
        inputs, targets = rows.batch(chosen)
        loop.update(chosen)
        logits = delta.logits(model, {name: torch.from_numpy(values) for name, values in inputs.items()})
        loss = functional.cross_entropy(logits, torch.from_numpy(targets))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(delta.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        yield loss.item()
