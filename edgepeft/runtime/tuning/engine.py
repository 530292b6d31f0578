"""What computes for a run: gradients in micro-batches, scores, logits; a session is opened when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from edgepeft.data.batches import Encoded
from edgepeft.graph.cut import below
from edgepeft.graph.names import LOGITS
from edgepeft.runtime.bundle import Bundle
from edgepeft.runtime.session import return_free_memory
from edgepeft.runtime.tuning.evaluation import Evaluator, Scored, deployed_graph
from edgepeft.runtime.tuning.hidden import HiddenStates
from edgepeft.runtime.tuning.layout import StepLayout
from edgepeft.runtime.tuning.step import Arrays, StepResult, TrainingStep
from edgepeft.runtime.tuning.subject import TuningSubject
from edgepeft.runtime.verify import run_in_groups

__all__ = ["Engine"]


class Engine:
    """``layout`` says how; ``work`` is a folder for hidden states that memory has no room for."""

    def __init__(
        self,
        bundle: Bundle,
        subject: TuningSubject,
        rows: Mapping[str, Encoded],
        layout: StepLayout,
        work: Path,
        *,
        threads: int | None = None,
    ) -> None:
        self._bundle, self._subject, self._rows, self._threads = bundle, subject, rows, threads
        self._micro_batch, self._split = layout.micro_batch, layout.split
        self._folder = work if layout.in_file else None
        self._hidden: dict[str, HiddenStates] = {}

    def prepare(self, told: Callable[[int, int], None] = lambda _, __: None) -> None:
        """Compute the hidden states, where they are kept; ``told`` hears the rows done, of how many.

        Raises:
            EdgepeftError: the disk has no room for them.
        """
        if self._split is None or self._hidden:
            return
        parts = {part: self._rows[part] for part in ("train", "eval")}
        total, done = sum(len(rows.targets) for rows in parts.values()), 0
        filled = {part: HiddenStates(self._split.states, rows, self._folder) for part, rows in parts.items()}
        for part, states in filled.items():
            for n in states.fill(self._split.below, self._bundle.folder, parts[part], self._threads):
                done += n
                told(done, total)
        self._hidden = filled
        return_free_memory()  # the lower layers' weights

    def gradients(self, tensors: Arrays, chosen: Sequence[int], masks: Sequence[NDArray[np.float32]]) -> StepResult:
        """Mean loss and its gradients over these training rows; ``masks`` [batch, width], one for each dropout."""
        self.prepare()
        whole, size = len(chosen), self._micro_batch
        if whole <= size:
            return self._micro(tensors, chosen, masks)
        loss, logits, gradients = 0.0, [], dict[str, NDArray[np.float32]]()
        for start in range(0, whole, size):
            part = slice(start, min(start + size, whole))
            found = self._micro(tensors, chosen[part], [mask[part] for mask in masks])
            share = (part.stop - part.start) / whole  # the graph's loss is the mean of the rows that it is given
            loss += share * found.loss
            logits.append(found.logits)
            for name, gradient in found.gradients.items():
                weighted = np.multiply(gradient, np.float32(share), out=gradient)
                gradients[name] = gradients[name] + weighted if name in gradients else weighted
        return StepResult(loss, np.concatenate(logits), gradients)

    def _micro(self, tensors: Arrays, chosen: Sequence[int], masks: Sequence[NDArray[np.float32]]) -> StepResult:
        inputs, targets = self._rows["train"].batch(chosen)
        states = self._hidden["train"].padded(chosen) if self._hidden else {}
        return self._step(tensors, {**inputs, **states}, targets, masks)

    def score(self, part: str, tensors: Arrays, metric: str, told: Callable[[int], None] = lambda _: None) -> Scored:
        """``tensors`` on the rows of a part; ``told`` hears the number of rows after each batch."""
        if part == "eval":
            self.prepare()
        evaluator = self._above if part in self._hidden else self._whole
        return evaluator.score(tensors, self._rows[part], metric, told)

    def release(self) -> None:
        """Let sessions and states go, to make room for what comes after."""
        self._hidden.clear()
        self._split = None
        for name in ("_step", "_above", "_whole"):
            self.__dict__.pop(name, None)
        return_free_memory()

    def logits(self, tensors: Arrays, inputs: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
        """The training graph's, from the token ids on, for rows of whatever origin: [rows, outputs]."""
        self.release()
        facts = self._subject.facts
        graph = TrainingStep(below(self._subject.training, LOGITS), self._bundle.folder, self._threads)

        def part(given: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
            rows = len(given["input_ids"])
            labels = np.zeros(rows, np.float32 if facts.regression else np.int64)
            masks = [np.ones((rows, width), np.float32) for _, width in facts.dropouts]
            return graph.logits(tensors, given, labels, masks)

        def group(given: Mapping[str, NDArray[np.int64]]) -> NDArray[np.float32]:
            starts = range(0, len(given["input_ids"]), self._micro_batch)
            cut = ({name: values[i : i + self._micro_batch] for name, values in given.items()} for i in starts)
            return np.concatenate([part(rows) for rows in cut])

        return run_in_groups(group, inputs)

    @cached_property
    def _step(self) -> TrainingStep:
        graph = self._subject.training if self._split is None else self._split.training
        return TrainingStep(graph, self._bundle.folder, self._threads)

    @cached_property
    def _whole(self) -> Evaluator:
        model = deployed_graph(self._bundle, self._subject)
        return Evaluator(model, self._bundle.folder, self._subject, self._threads)

    @cached_property
    def _above(self) -> Evaluator:
        assert self._split is not None
        packed = self._hidden["eval"].packed
        return Evaluator(self._split.deployed, self._bundle.folder, self._subject, self._threads, packed)
