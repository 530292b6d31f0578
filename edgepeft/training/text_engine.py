"""The engine of text that is written: teacher forcing trains, greedy decoding answers.

loss = mean over a step's target tokens of -log p(token | the target before it), no label smoothing
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.base import Architecture
from edgepeft.backbones.tokens import TextEncoder
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import DataError
from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.data.parts import PARTS, TaskData
from edgepeft.data.training_loop.engine import Scored
from edgepeft.runtime.decoding import Grammars, Guide
from edgepeft.tasks.base import TaskType
from edgepeft.training.engine import PyTorchEngine, torch_batch

WRITTEN_ROWS = 16  # at once: the logits of a large vocabulary at every token are hundreds of megabytes


@dataclass(eq=False)
class TextEngine(PyTorchEngine):
    """A delta that writes text; ``decode`` makes a text of tokens, ``grammars`` lead it where it has a schema."""

    _: KW_ONLY
    decode: Callable[[Sequence[int]], str]
    grammars: Grammars

    def scored(self, part: str, rows: Encoded, kind: TaskType, metric: str, advance: Callable[[int], None]) -> Scored:
        """What greedy decoding writes, and of each row the mean loss of its target's tokens."""
        texts, losses = np.empty(len(rows.targets), object), np.empty(len(rows.targets))
        longest, schema, writing = self.delta.card.max_target_length or 0, self.delta.card.json_schema, rows.writing
        assert writing is not None
        for chosen in sorted_batches(rows.lengths, WRITTEN_ROWS):
            inputs, targets = torch_batch(self.rows[part], chosen, self.device)
            with torch.inference_mode():
                logits = self.delta.logits(self.model, inputs).transpose(1, 2)
                each = functional.cross_entropy(logits, targets, reduction="none").sum(1) / (targets >= 0).sum(1)
                losses[chosen] = each.cpu().numpy()  # of a row's tokens the mean
                read = {name: given for name, given in inputs.items() if not name.startswith("decoder_")}
                guides = None if schema is None else [self.grammars.guide(schema) for _ in chosen]
                tokens: list[list[int]] = generated(self.delta, self.model, read, longest, guides=guides).tolist()
                end = writing.end_token_id
                texts[chosen] = [self.decode(row[: [*row, end].index(end)]) for row in tokens]
            advance(len(chosen))
        return Scored(kind.score(metric, rows.references, texts.tolist()), float(losses.mean()), texts, losses, kind)


def require_kept(data: TaskData, grammars: Grammars, encoder: TextEncoder) -> None:
    """See that targets keep to the task's JSON schema, if it has one, and that it can be met."""
    if data.json_schema is None:
        return
    for row in (row for part in PARTS for row in getattr(data, part)):
        tokens = encoder.plain_ids(row.label or "")
        if (n := grammars.guide(data.json_schema).followed(tokens)) is not None:
            where = f"from {encoder.decode(tokens[n:])!r:.60} on" if n < len(tokens) else "for it ends too early"
            raise DataError(
                f"{row.where}: the target {row.label!r:.200} does not keep to the JSON schema, {where}; correct one "
                "of the two."
            )


def greedy(architecture: Architecture, longest: int, *, ends: bool) -> dict[str, Any]:
    """What ``generate`` of transformers takes to write greedily; without ``ends`` no token ends a text."""
    from transformers import DynamicCache, EncoderDecoderCache, GenerationConfig

    decoder = architecture.decoder
    assert decoder is not None, "what writes text has one"
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        max_new_tokens=longest,
        do_sample=False,
        num_beams=1,
        decoder_start_token_id=decoder.start_token_id,
        eos_token_id=decoder.end_token_id if ends else -1,  # None would be the model's own
        pad_token_id=architecture.pad_token_id,
    )
    if architecture.decoder_only:
        return {"generation_config": config}
    # transformers 4's own cache has as many layers as the encoder, be the decoder deeper.
    return {"generation_config": config, "past_key_values": EncoderDecoderCache(DynamicCache(), DynamicCache())}


def generated(
    delta: Delta,
    model: nn.Module,
    inputs: Mapping[str, Tensor],
    longest: int,
    *,
    ends: bool = True,
    guides: Sequence[Guide] | None = None,
) -> Tensor:
    """int64 [batch, length]: what transformers' greedy decoding writes, at most ``longest``, led by ``guides``."""
    with delta.within(model, delta.own_tensors(model)) as overrides:
        tensors = {f"model.{name}": tensor for name, tensor in overrides.items()}
        given = {**delta.prompted(inputs), **greedy(delta.architecture, longest, ends=ends)}
        read = 1  # the start
        if delta.architecture.decoder_only:
            read = given["input_ids"].shape[1]
            given["use_cache"] = not delta.card.prompt_length  # a prompt is told by places, of which a step knows none
        if guides is not None:
            given["logits_processor"] = [_guided(guides)]
        tokens: Tensor = torch.func.functional_call(_Generating(model), tensors, (), given, tie_weights=False)
    return tokens[:, read:]


def _guided(guides: Sequence[Guide]) -> Callable[[Tensor, Tensor], Tensor]:
    """What leaves of each row's logits [batch, words] those that its guide lets come next; rows that ended are left."""
    begun = False

    def restricted(ids: Tensor, logits: Tensor) -> Tensor:
        nonlocal begun
        values = logits.clone()
        for i, guide in enumerate(guides):
            if begun and not guide.ended:
                guide.take(int(ids[i, -1]))
            allowed = torch.from_numpy(guide.allowed(logits.shape[1])).to(values.device)
            values[i, ~allowed] = -torch.inf
        begun = True
        return values

    return restricted


class _Generating(nn.Module):
    """``generate`` as a forward pass, in which tensors can be replaced."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, **given: Any) -> Tensor:
        """Tokens [batch, length]."""
        whole: Any = self.model
        return whole.generate(**given)
