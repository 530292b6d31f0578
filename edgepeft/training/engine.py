"""The training loop's engines in PyTorch: the backbone is frozen and in eval mode, only the head has dropout.

A bare backbone's states are the same for every method, rate and seed on the same rows: runs share them in a folder.
A file is named by the hash of all that its values depend on, tokens included, so no run can take another's, and a run
has the same bits whether it computes or reads.  Two that need a file at once both compute it.
"""

from __future__ import annotations

import hashlib
import io
import json
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import KW_ONLY, dataclass
from importlib.metadata import version
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from edgepeft.backbones.hooks import states_of
from edgepeft.backbones.pooling import Pooling
from edgepeft.bundle.delta import Delta
from edgepeft.common.atomic import write_atomically
from edgepeft.data.batches import Encoded, sorted_batches
from edgepeft.data.columns import NO_TARGET
from edgepeft.data.row_grouping import LOWEST
from edgepeft.data.training_loop.engine import SCORED_ROWS, Arrays, Masks, StepOutcome, TrainingEngine
from edgepeft.tasks.base import TaskType

CPU = torch.device("cpu")


@dataclass(eq=False)
class PyTorchEngine(TrainingEngine):
    """A delta on its frozen model; AdamW has two rates, the delta's own and its head's.

    ``weights`` [labels] multiply the rows' losses by their labels; None weighs all alike.  Both modules move to
    ``device``.  With ``bf16`` a step's forward is under autocast; what is trained, its gradients and AdamW's moments
    are float32 all the same, whose exponents bfloat16 has, so no loss is scaled.  Evaluations are float32.  ``shared``
    has states of the bare backbone that other runs computed; those of each token are too large to be kept there.
    """

    delta: Delta
    model: nn.Module
    rows: Mapping[str, Encoded]
    rates: tuple[float, float]
    clip_norm: float
    _: KW_ONLY
    weights: Sequence[float] | None = None
    device: torch.device = CPU
    bf16: bool = False
    shared: SharedStates | None = None

    def __post_init__(self) -> None:
        self.delta.eval().to(self.device)
        self.model.to(self.device)
        self.kind = self.delta.card.task_kind
        if self.delta.card.pooling is Pooling.TOKENS:
            self.shared = None
        own = self.delta.tensors().items()
        groups: list[dict[str, Any]] = [
            {"params": [t for name, t in own if name.startswith("head/") == of_head], "lr": rate, "initial_lr": rate}
            for of_head, rate in zip((False, True), self.rates, strict=True)
        ]
        # No weight decay, as in the methods' papers.  Fused, it reads and writes each tensor once: of 109 million
        # parameters a step takes 0.05 s on one core, not 0.5.
        some, fused = [group for group in groups if group["params"]], self.device.type == "cpu"
        self.optimizer = torch.optim.AdamW(some, weight_decay=0.0, fused=fused)
        self.kept: dict[str, list[Tensor]] = {}  # of token rows [d], or [length, d], by part: what a lone head reads

    def prepare(self, advance: Callable[[int, int], None]) -> None:
        """Compute what a head reads that is trained alone; other steps share nothing."""
        if not self.delta.trains_head_alone:
            return
        done, total = 0, sum(len(rows.targets) for rows in self.rows.values())
        for part, rows in self.rows.items():
            kept: dict[int, Tensor] = {}
            for chosen in sorted_batches(rows.lengths, SCORED_ROWS):
                read = rows.token_rows(chosen)
                for i, state in zip(read, torch.from_numpy(self.states(part, chosen)), strict=True):
                    kept[i] = state[: rows.token_lengths[i]].clone() if self.kind.per_token else state
                done += len(chosen)
                advance(done, total)
            self.kept[part] = [kept[i] for i in range(len(kept))]

    def step(self, chosen: Sequence[int], factor: float, masks: Masks) -> StepOutcome:
        """Forward, backward, clip, AdamW."""
        loss = self._loss(chosen, masks)
        if not math.isfinite(loss.item()):
            return StepOutcome(loss.item(), math.nan)
        self.optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        norm = float(torch.nn.utils.clip_grad_norm_(self.delta.parameters(), self.clip_norm))
        if math.isfinite(norm):
            for group in self.optimizer.param_groups:
                group["lr"] = group["initial_lr"] * factor
            self.optimizer.step()
        return StepOutcome(loss.item(), norm)

    def _loss(self, chosen: Sequence[int], masks: Masks) -> Tensor:
        rows = self.rows["train"]
        inputs, targets = torch_batch(rows, chosen, self.device)
        weights = None if self.weights is None else torch.tensor(self.weights, device=self.device)
        numbers = count()

        def drop(features: Tensor, probability: float) -> Tensor:
            mask = torch.from_numpy(masks(next(numbers), probability, features.shape))  # the same on every device
            return features * mask.to(self.device)

        precision = torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext()
        with replaced_dropout(self.delta, drop), precision:
            logits = self._logits("train", chosen, inputs)
        return loss_of(self.kind, logits.float(), targets, weights, rows.places(chosen), pooling=rows.pooling(chosen))

    def logits(self, part: str, chosen: Sequence[int]) -> NDArray[np.float32]:
        """[token rows, outputs]."""
        with torch.inference_mode():
            inputs, _ = torch_batch(self.rows[part], chosen, self.device)
            if self.kept:
                return self._logits(part, chosen, inputs).cpu().numpy()
            found = [self.delta.logits(self.model, few).cpu().numpy() for few in _at_once(inputs)]
        return np.concatenate(found)

    def _logits(self, part: str, chosen: Sequence[int], inputs: Mapping[str, Tensor]) -> Tensor:
        if self.kept:
            read = self.rows[part].token_rows(chosen)
            states = torch.nn.utils.rnn.pad_sequence([self.kept[part][i] for i in read], batch_first=True)
            return self.delta.read_out(states.to(self.device))
        return self.delta.logits(self.model, inputs)

    def states(self, part: str, chosen: Sequence[int]) -> NDArray[np.float32]:
        """[token rows, d], or [token rows, length, d], of the bare backbone."""
        inputs, _ = torch_batch(self.rows[part], chosen, self.device)
        pooling = self.delta.card.pooling

        def computed() -> NDArray[np.float32]:
            with torch.inference_mode():
                states = ((states_of(self.model, few), few["attention_mask"]) for few in _at_once(inputs))
                return torch.cat([pooling.of_states(*each).cpu() for each in states]).numpy()

        return computed() if self.shared is None else self.shared.of(inputs, pooling.name, computed)

    def tensors(self) -> Arrays:
        """Copies by name."""
        return {name: tensor.detach().cpu().numpy().copy() for name, tensor in self.delta.tensors().items()}

    def state(self) -> Arrays:
        """``delta:<tensor>``, and ``optimizer:<tensor>:<what AdamW keeps of it>``."""
        named: Arrays = {}
        for name, parameter in self.delta.tensors().items():
            named[f"delta:{name}"] = parameter.detach().cpu().contiguous().numpy()
            for key, value in self.optimizer.state.get(parameter, {}).items():
                named[f"optimizer:{name}:{key}"] = value.cpu().contiguous().numpy()
        return named

    def load_state(self, state: Arrays) -> None:
        """Put parameters and AdamW where they were, be the device another one than then."""
        tensors = {name: torch.from_numpy(value) for name, value in state.items()}
        self.delta.read({name[6:]: t for name, t in tensors.items() if name.startswith("delta:")}, "the checkpoint")
        for name, parameter in self.delta.tensors().items():
            start = f"optimizer:{name}:"
            kept = {key.removeprefix(start): t for key, t in tensors.items() if key.startswith(start)}
            if kept:  # AdamW counts its steps on the CPU, whatever the device
                self.optimizer.state[parameter] = {
                    key: t if key == "step" else t.to(parameter.device) for key, t in kept.items()
                }

    def finish(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Take the best tensors."""
        self.delta.read({name: torch.from_numpy(values) for name, values in tensors.items()}, "the best step")


def _at_once(inputs: Mapping[str, Tensor]) -> Iterator[dict[str, Tensor]]:
    """As many token rows as are scored at once where each is a row: long texts are very many windows."""
    for start in range(0, len(inputs["input_ids"]), SCORED_ROWS):
        yield {name: values[start : start + SCORED_ROWS] for name, values in inputs.items()}


@contextmanager
def replaced_dropout(delta: Delta, apply: Callable[[Tensor, float], Tensor]) -> Iterator[None]:
    """Within the block, ``apply`` gets what the delta would drop out, and the probability where it is above 0."""
    with ExitStack() as hooks:
        for module in delta.modules():
            if isinstance(module, nn.Dropout) and module.p > 0:
                hooks.enter_context(module.register_forward_hook(lambda one, given, _: apply(given[0], one.p)))
        yield


def decoder_inputs(targets: Tensor, start_token_id: int, pad_token_id: int) -> Tensor:
    """int64 [B, T], NO_TARGET past a row's end -> what the decoder reads to write them, [B, T]."""
    read = functional.pad(targets[:, :-1], (1, 0), value=start_token_id)
    return read.masked_fill(read == NO_TARGET, pad_token_id)


def torch_batch(rows: Encoded, chosen: Sequence[int], device: torch.device = CPU) -> tuple[dict[str, Tensor], Tensor]:
    """The model's inputs [batch, longest] and targets [batch, ...] of those rows; of text, what the decoder reads."""
    given, answers = rows.batch(chosen)
    inputs = {name: torch.from_numpy(values).to(device) for name, values in given.items()}
    targets = torch.from_numpy(answers).to(device)
    if rows.writing is not None:
        inputs["decoder_input_ids"] = decoder_inputs(targets, rows.writing.start_token_id, rows.pad_token_id)
    return inputs, targets


def logits_of(delta: Delta, model: nn.Module, rows: Encoded, chosen: Sequence[int]) -> NDArray[np.float32]:
    """[token rows, outputs] of a delta in eval mode, without gradients."""
    with torch.inference_mode():
        return delta.logits(model, torch_batch(rows, chosen)[0]).numpy()


def loss_of(
    kind: TaskType,
    logits: Tensor,
    targets: Tensor,
    weights: Tensor | None = None,
    places: NDArray[np.int64] | None = None,
    *,
    pooling: NDArray[np.float32] | None = None,
) -> Tensor:
    """The mean over a batch, as the kind of task has it; ``weights`` [labels] make it a weighted one.

    Where texts are read in windows, ``pooling`` [texts, token rows] makes one text's of its windows' logits.  Where a
    row has several texts, ``places`` [batch, most] says which logits are its own; of passages [token rows, length]
    which tokens'.
    """
    if pooling is not None:
        logits = torch.from_numpy(pooling).to(logits) @ logits
    if places is not None:
        of_rows = torch.from_numpy(places).to(logits.device)
        missing = (of_rows < 0).unsqueeze(-1)
        logits = logits.flatten(0, -2)[of_rows.clamp(min=0)].masked_fill(missing, LOWEST)
    return kind.loss(logits, targets, weights)


@dataclass(frozen=True)
class SharedStates:
    """The states of one backbone, by the digest of its weights, in ``folder``; ``attention`` is that of its model."""

    folder: Path
    backbone: str
    attention: str | None = None

    def of(
        self, inputs: Mapping[str, Tensor], pooling: str, compute: Callable[[], NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """[token rows, d] for these inputs of the model, read where they are there and left there where not."""
        # The last bits follow from the device, the number of threads, the attention and who computes.
        how = [next(iter(inputs.values())).device.type, torch.get_num_threads(), self.attention]
        digest = hashlib.sha256(
            json.dumps([self.backbone, pooling, *how, *map(version, ("torch", "transformers"))]).encode()
        )
        for name, values in sorted(inputs.items()):
            digest.update(json.dumps([name, str(values.dtype), list(values.shape)]).encode())
            digest.update(values.cpu().numpy().tobytes())
        path = self.folder / f"{digest.hexdigest()}.npy"
        try:
            found: NDArray[np.float32] = np.load(path, allow_pickle=False)
        except (OSError, ValueError, EOFError):  # not there, or damaged
            np.save(file := io.BytesIO(), found := compute())
            write_atomically(path, file.getvalue())
        return found
