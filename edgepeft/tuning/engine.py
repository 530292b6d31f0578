"""The training loop's engine in ONNX Runtime: gradients in micro-batches, logits; sessions open when first needed."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
from numpy.typing import NDArray

from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError
from edgepeft.data.batches import Encoded
from edgepeft.data.training_loop.engine import Arrays, Masks, StepOutcome, TrainingEngine
from edgepeft.deploy.verify import pack_check
from edgepeft.graph.names import LOGITS
from edgepeft.options.verbs import TuneSettings
from edgepeft.runtime.inputs import passes, write_rows
from edgepeft.runtime.session import open_session, return_free_memory, run_session
from edgepeft.tuning.activation_cache import HiddenStates, SplitGraphs, hidden_states
from edgepeft.tuning.memory import StepLayout
from edgepeft.tuning.step import AdamW, Expansion, StepResult, StepRows, TrainingStep, clip
from edgepeft.tuning.target import TuningTarget, deployed_graph

_ROUNDINGS = 100  # of the largest number that is trained, below which no move is judged
_CHANGE, _DIGITS = 0.01, 1e-4  # of the loss, to be seen over rounding: in itself, and as a share of it
_FURTHER = 4
_OFF, _ALIKE = 0.05, 0.035  # a jump on both sides that makes 5 % here makes 1.25 % further on


@dataclass(eq=False)
class OnnxRuntimeEngine(TrainingEngine):
    """The trained tensors are arrays here and inputs of every graph; nothing is open yet."""

    bundle: Bundle
    target: TuningTarget
    rows: Mapping[str, Encoded]  # as tokens, by part
    layout: StepLayout
    work: Path  # a folder for hidden states that memory has no room for
    optimizer: AdamW  # with a rate for each tensor
    options: TuneSettings
    threads: int | None = None
    keep: bool = False  # whether hidden states stay there and are read there; those of other rows are removed

    def __post_init__(self) -> None:
        self._split: SplitGraphs | None = self.layout.split
        self._hidden: dict[str, HiddenStates] = {}
        self._weights = self.target.data.row_weights(balanced=self.options.balanced)
        self._expansion = Expansion(self.target.delta, self.target.facts, self.bundle.checkpoint, self.threads)
        self._trained: Arrays = self.target.tensors()
        self._given: Arrays | None = None
        self._checked = False
        self.proximal: tuple[float, Arrays] | None = None

    def prepare(self, advance: Callable[[int, int], None] = lambda _, __: None) -> None:
        """Compute the hidden states, where they are kept; ``advance`` gets the number of rows done and of all."""
        if self._split is None or self._hidden:
            return
        parts = {part: self.rows[part] for part in ("train", "eval")}
        total, done = sum(len(rows.targets) for rows in parts.values()), 0
        weights = self.bundle.manifest.backbone.sha256.weights
        folder, kept = self.work if self.layout.in_file else None, self.work if self.keep else None
        filled = hidden_states(self._split, parts, weights, folder=folder, kept=kept)
        for part, states in filled.items():
            for n in states.fill(self._split.below, self.bundle.folder, parts[part], self.threads):
                done += n
                advance(done, total)
        self._hidden = filled
        return_free_memory()  # the lower layers' weights

    def step(self, chosen: Sequence[int], factor: float, masks: Masks) -> StepOutcome:
        """Gradients, clip, AdamW; with ``proximal``, (mu, w_t), gradients, not the loss, have mu (w - w_t) besides."""
        self._given = None
        kind, train = self.target.facts.kind, self.rows["train"]
        read = train.token_rows(chosen)
        *shape, _ = kind.logits_shape(len(read), max(train.lengths[i] for i in chosen))
        drawn = [
            masks(index, probability if self.options.dropout else 0.0, (*shape, width))
            for index, (probability, width) in enumerate(self.target.facts.dropouts)
        ]
        result = self.gradients(chosen, drawn)
        self._check(chosen, drawn, result)
        if self.proximal is not None:
            mu, start = self.proximal
            for name in result.gradients:
                result.gradients[name] += np.float32(mu) * (self.trained[name] - start[name])
        norm = clip(result.gradients, self.options.clip_norm)
        if math.isfinite(result.loss) and math.isfinite(norm):
            self.optimizer.update(self.trained, result.gradients, factor)
            return StepOutcome(result.loss, norm)
        counts = train.counts(chosen)
        owners = zip(chosen, counts, np.cumsum(counts), strict=True)
        alone = (self.gradients([row], [mask[end - n : end] for mask in drawn]) for row, n, end in owners)
        finite = [math.isfinite(each.loss) and math.isfinite(clip(each.gradients, math.inf)) for each in alone]
        return StepOutcome(result.loss, norm, tuple(row for row, ok in zip(chosen, finite, strict=True) if not ok))

    def gradients(self, chosen: Sequence[int], masks: Sequence[NDArray[np.float32]]) -> StepResult:
        """Mean loss of training rows, and its gradients; ``masks`` [token rows, (length,) width], one a dropout."""
        self.prepare()
        back = partial(self._expansion.gradients, self.trained)
        return self._step(self._expansion.inputs(self.trained), self._step_rows(chosen, masks), back=back)

    def _step_rows(self, chosen: Sequence[int], masks: Sequence[NDArray[np.float32]]) -> StepRows:
        train = self.rows["train"]
        weights, (inputs, labels) = self._weights[list(chosen)], train.batch(chosen)
        weights = np.repeat(weights, train.counts(chosen)) if train.windowed else weights
        terms = self.target.facts.kind.terms(labels)
        shares = (weights / max((weights * terms).sum(), np.finfo(np.float32).tiny)).astype(np.float32)

        def states(part: Sequence[int]) -> Mapping[str, NDArray[Any]]:
            if train.windowed:  # each a row of the step
                own = train.token_rows(chosen)
                return self._hidden["train"].packed([own[i] for i in part]) if self._hidden else {}
            return self._beside([chosen[i] for i in part], labels[part])

        rows = StepRows(inputs, labels, masks, shares, self.layout.micro_batch, states=states)
        if train.windowed:
            return replace(rows, read=train.readable(chosen) if self.target.facts.kind.passages else None)
        per_row = None if train.per_row is None else train.per_row[list(chosen)]
        return replace(rows, per_row=per_row, windows=train.windows(chosen))

    def _beside(self, chosen: Sequence[int], labels: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        return self._hidden["train"].packed(self.rows["train"].token_rows(chosen)) if self._hidden else {}

    def _check(self, chosen: Sequence[int], masks: Sequence[NDArray[np.float32]], found: StepResult) -> None:
        """See that the loss of these rows changes along its gradient as that says, by the method's own tensors.

        Beside those of a fresh head theirs are small, and theirs is the long way back.  8-bit weights round what is
        between by more than that; their gradients pass the rounding straight through.
        """
        if self._checked or self.bundle.manifest.backbone.weights_dtype != "fp32":
            return
        self._checked, trained = True, self.trained
        own = {name: each for name, each in found.gradients.items() if not name.startswith("head/")} or found.gradients
        norm, largest = clip(own, math.inf), max(float(np.abs(trained[name]).max(initial=0)) for name in own)

        def along(distance: float) -> float:
            moved = {name: trained[name] + np.float32(distance / norm) * gradient for name, gradient in own.items()}
            return self._step.loss(self._expansion.inputs({**trained, **moved}), self._step_rows(chosen, masks))

        slope = wrong_slope(along, found.loss, norm, _ROUNDINGS * float(np.finfo(np.float32).eps) * largest)
        if slope is not None:
            raise BundleError(
                f"the gradient of task {self.target.task}, of {self.target.method}, is wrong: its norm is "
                f"{norm:.3g}, and along it the loss changes by {slope:.3g} for each unit. Nothing was changed. Please "
                "report this; on a workstation, edgepeft train goes without this gradient."
            )

    def logits(self, part: str, chosen: Sequence[int]) -> NDArray[np.float32]:
        """[token rows, (length,) outputs], as deployed: from the hidden states on where they are kept, as stored."""
        if part == "eval":
            self.prepare()
        rows, hidden = self.rows[part], self._hidden.get(part)
        session = self._whole if hidden is None else self._above
        batch, kind, read = rows.batch(chosen)[0], self.target.facts.kind, rows.token_rows(chosen)
        logits = np.zeros(kind.logits_shape(*batch["input_ids"].shape), np.float32)
        for place, inputs in passes(batch, prompt=self.target.prompt_length):
            states = {} if hidden is None else hidden.packed([read[i] for i in place])
            write_rows(logits, place, run_session(session, LOGITS, {**self.given, **inputs, **states}))
        return logits

    def states(self, part: str, chosen: Sequence[int]) -> NDArray[np.float32]:
        """[token rows, (length,) d] of the bare backbone."""
        batch, kind = self.rows[part].batch(chosen)[0], self.target.facts.kind
        *shape, _ = kind.logits_shape(*batch["input_ids"].shape)
        states = np.zeros((*shape, self.bundle.architecture.hidden_size), np.float32)
        for place, inputs in passes(batch):
            output = "last_hidden_state" if kind.per_token else self.target.pooling.site
            write_rows(states, place, run_session(self._bare, output, inputs))
        return states

    @property
    def trained(self) -> Arrays:
        """The trained tensors in float32, by name."""
        return self._trained

    @trained.setter
    def trained(self, tensors: Arrays) -> None:
        self._trained, self._given = tensors, None

    @property
    def given(self) -> Arrays:
        """Inputs of graphs where answers are scored, from the tensors as the task's file will hold them."""
        if self._given is None:
            self._given = self._expansion.inputs(self.target.as_stored(self.trained))
        return self._given

    def tensors(self) -> Arrays:
        """Copies by name, as the task's file will hold them."""
        return {name: tensor.copy() for name, tensor in self.target.as_stored(self.trained).items()}

    def state(self) -> Arrays:
        """``delta:``, ``first:`` and ``second:<tensor>`` (AdamW's moments), and ``steps``."""
        parts = {"delta": self.trained, "first": self.optimizer.first, "second": self.optimizer.second}
        named = {f"{part}:{name}": values for part, tensors in parts.items() for name, values in tensors.items()}
        return {**named, "steps": np.array(self.optimizer.steps)}

    def load_state(self, state: Arrays) -> None:
        """Put tensors and AdamW where they were: where the state has no moments, there were none."""
        self._given = None
        self.optimizer.first.clear()
        self.optimizer.second.clear()
        parts = {"delta": self.trained, "first": self.optimizer.first, "second": self.optimizer.second}
        for key, values in state.items():
            part, _, name = key.partition(":")
            if name:
                parts[part][name] = values
        self.optimizer.steps = int(state["steps"])

    def finish(self, tensors: Mapping[str, NDArray[Any]]) -> None:
        """Take the best tensors; let sessions and states go, to make room for what comes after."""
        self.trained = dict(tensors)
        self._hidden.clear()
        self._split = None
        for name in ("_step", "_above", "_whole", "_bare"):
            self.__dict__.pop(name, None)
        return_free_memory()

    def check(self) -> bytes:
        """The content of the task's check file, as a step computes it, from the token ids on.  No step can follow."""
        self.finish(self.trained)
        graph = TrainingStep(self._deployed, self.target.facts, self.bundle.folder, self.threads)
        return pack_check(self.target.check, graph.logits(self.given, self.target.check, self.layout.micro_batch))

    @property
    def _deployed(self) -> onnx.ModelProto:
        return deployed_graph(self.target.delta, self.target.facts, self.bundle)

    @cached_property
    def _step(self) -> TrainingStep:
        return TrainingStep(self.layout.training, self.target.facts, self.bundle.folder, self.threads)

    @cached_property
    def _whole(self) -> ort.InferenceSession:
        return open_session(self._deployed, self.bundle.folder, self.threads)

    @cached_property
    def _bare(self) -> ort.InferenceSession:
        self.__dict__.pop("_whole", None)  # one copy of the weights at a time
        self._given = None
        return open_session(self.bundle.graph(None), self.bundle.folder, self.threads)

    @cached_property
    def _above(self) -> ort.InferenceSession:
        assert self._split is not None
        return open_session(self._split.deployed, self.bundle.folder, self.threads)


def wrong_slope(loss: Callable[[float], float], start: float, norm: float, least: float) -> float | None:
    """The slope that the loss has, where the gradient's norm is surely another.

    A path that is lost on the way back is silent, so the loss is moved along the gradient g: at a distance t,
    (f(t) - f(-t)) / 2t is |g| but for terms of t^2 and for rounding.  A logit may be off by 1e-4 (to that a task is
    verified when it is exported), so a cross entropy by 2e-4, and a squared error by 2e-4 times its root and by its own
    last digits: where f is to change by 0.01 (times that), the slope is off by 4 % at most.  Measured, it is off by
    0.04 %.

    Curvature, a kink or a jump nearby makes slopes differ at four times the distance or on the two sides: only where
    all of them agree with each other, and not with the gradient, is it wrong.  What is lost at right angles to the rest
    of the gradient is not found.

    ``loss`` gives it at a distance along the normalised gradient, twice, or four times where the slope is not the norm;
    ``start`` is the loss at 0.  Rounding of the tensors is small beside the distance ``least``: a loss that is too
    steep for it is not judged.
    """
    if not (math.isfinite(start) and math.isfinite(norm) and norm > 0):
        return None
    distance = max(_CHANGE * max(1.0, math.sqrt(start)), _DIGITS * start) / (2 * norm)
    if distance < least:
        return None
    before, after = loss(-distance), loss(distance)
    slope = (after - before) / (2 * distance)
    if _near(slope, norm, _OFF):
        return None
    further = _FURTHER * distance
    others = [(after - start) / distance, (start - before) / distance]
    others.append((loss(further) - loss(-further)) / (2 * further))
    return slope if all(_near(other, slope, _ALIKE) for other in others) else None


def _near(one: float, other: float, share: float) -> bool:
    """Not where either is no number."""
    return abs(one - other) <= share * abs(other)
