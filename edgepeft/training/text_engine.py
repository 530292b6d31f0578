"""A training loop's engine where text is written: teacher forcing trains, greedy decoding answers.

loss = mean over a step's target tokens of -log p(token | the target before it), no label smoothing
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Architecture
from edgepeft.bundle.delta import Delta
from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.data.training_loop.engine import Scored
from edgepeft.tasks.base import TaskType
from edgepeft.training.engine import PyTorchEngine, torch_batch

__all__ = ["TextEngine", "generated", "greedy"]

WRITTEN_ROWS = 16  # at once: the logits of a large vocabulary at every token are hundreds of megabytes


class TextEngine(PyTorchEngine):
    """A delta that writes text; ``decode`` makes a text of tokens."""

    def __init__(self, *given: Any, decode: Callable[[Sequence[int]], str], **more: Any) -> None:
        super().__init__(*given, **more)
        self.decode = decode

    def scored(self, part: str, rows: Encoded, kind: TaskType, metric: str, advance: Callable[[int], None]) -> Scored:
        """What greedy decoding writes, and of each row the mean loss of its target's tokens."""
        texts, losses = np.empty(len(rows.targets), object), np.empty(len(rows.targets))
        for chosen in sorted_batches(rows.lengths, WRITTEN_ROWS):
            inputs, targets = torch_batch(self.rows[part], chosen, self.device)
            with torch.inference_mode():
                losses[chosen] = _losses(self.delta.logits(self.model, inputs), targets).cpu().numpy()
                texts[chosen] = [self.decode(row) for row in self._written(inputs)]
            advance(len(chosen))
        return Scored(kind.score(metric, rows.references, texts.tolist()), float(losses.mean()), texts, losses, kind)

    def _written(self, inputs: Mapping[str, Tensor]) -> list[list[int]]:
        """The tokens of each row, up to its end."""
        longest, writing = self.delta.card.max_target_length or 0, self.rows["train"].writing
        assert writing is not None
        read = {name: rows for name, rows in inputs.items() if not name.startswith("decoder_")}
        tokens: list[list[int]] = generated(self.delta, self.model, read, longest).tolist()
        return [row[: [*row, writing.end_token_id].index(writing.end_token_id)] for row in tokens]


def greedy(architecture: Architecture, longest: int, *, ends: bool = True) -> dict[str, Any]:
    """What ``generate`` of transformers takes to write greedily; without ``ends`` no token ends a text."""
    from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig

    decoder = architecture.decoder
    assert decoder is not None
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=longest,
        do_sample=False,
        num_beams=1,
        decoder_start_token_id=decoder.start_token_id,
        eos_token_id=decoder.end_token_id if ends else None,
        pad_token_id=architecture.pad_token_id,
    )
    # transformers 4's own cache has as many layers as the encoder, be the decoder deeper.
    return {"generation_config": config, "past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())}


def generated(
    delta: Delta, model: nn.Module, inputs: Mapping[str, Tensor], longest: int, *, ends: bool = True
) -> Tensor:
    """int64 [batch, length]: what transformers' greedy decoding writes under the delta, ``longest`` tokens at most."""
    with delta.within(model, delta.own_tensors(model)) as overrides:
        tensors = {f"model.{name}": tensor for name, tensor in overrides.items()}
        given = {**delta.prompted(inputs), **greedy(delta.architecture, longest, ends=ends)}
        tokens: Tensor = torch.func.functional_call(_Generating(model), tensors, (), given, tie_weights=False)
    return tokens[:, 1:]  # the first is the start


class _Generating(nn.Module):
    """``generate`` as a forward pass, in which tensors can be replaced."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Any) -> Tensor:
        """Tokens [batch, length]."""
        whole: Any = self.model
        tokens: Tensor = whole.generate(**given)
        return tokens


def _losses(logits: Tensor, targets: Tensor) -> Tensor:
    """[batch, length, words] and [batch, length] -> [batch]: the mean over a row's tokens."""
    known = targets >= 0
    each = functional.cross_entropy(logits.transpose(1, 2), targets, reduction="none")
    return each.sum(1) / known.sum(1)
