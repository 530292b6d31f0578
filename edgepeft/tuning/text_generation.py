"""The board's engine where text is written: teacher forcing trains, greedy decoding of what will be stored answers.

Letters: B rows, T tokens of the longest target, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray

from edgepeft.backbones.text import BEFORE
from edgepeft.data.batches import Encoded, Writing, sorted_batches
from edgepeft.data.training_loop.engine import Scored
from edgepeft.deploy.verify import CANDIDATES, STEPS, TextCheck, in_groups
from edgepeft.graph.names import LOGITS
from edgepeft.graph.splice import splice_text
from edgepeft.runtime.decoding import Decoding, log_probabilities
from edgepeft.runtime.generation import Generator, TextSession
from edgepeft.runtime.inputs import Inputs
from edgepeft.runtime.passes import passes
from edgepeft.runtime.session import open_session, run_session
from edgepeft.runtime.weights import TaskSession
from edgepeft.tasks.base import TaskType
from edgepeft.tuning.engine import OnnxRuntimeEngine
from edgepeft.tuning.step import WRITTEN_ROWS, targets_at_once

__all__ = ["WritingEngine"]


class WritingEngine(OnnxRuntimeEngine):
    """A step's graph reads what stands before each token of a target; the tokens are its labels."""

    def scored(self, part: str, rows: Encoded, kind: TaskType, metric: str, advance: Callable[[int], None]) -> Scored:
        """What greedy decoding writes, and of each row the mean loss of its target's tokens."""
        texts, losses = np.empty(len(rows.targets), object), np.empty(len(rows.targets))
        decode, decoding = self._bundle.encoder().decode, Decoding(max_new_tokens=self._writing.max_length)
        generator, session = Generator(self._bundle, self._open), self._session()
        for chosen in sorted_batches(rows.lengths, WRITTEN_ROWS):
            inputs, targets = rows.batch(chosen)
            losses[chosen] = self._losses(inputs, targets, kind)
            target = self._target
            written = generator.written(target.task, lambda: session, inputs, decoding, target.prompt_length)
            texts[chosen] = [decode(one.tokens) for one in written]
            advance(len(chosen))
        return Scored(kind.score(metric, rows.references, texts.tolist()), float(losses.mean()), texts, losses, kind)

    def check(self) -> bytes:
        """What the training graph goes on with greedily, and its likeliest tokens at each step."""
        self.finish(self.trained)
        inputs = self._target.check
        words = min(CANDIDATES, self._writing.words)
        shape = (len(inputs["input_ids"]), STEPS, words)
        candidates, likely = np.empty(shape, np.int64), np.empty(shape, np.float32)
        before = np.full((shape[0], STEPS), self._writing.start_token_id)
        for rows, group in in_groups(inputs):
            for step in range(STEPS):
                found = log_probabilities(self._taught(group, before[rows, : step + 1])[:, -1])
                best = np.argsort(-found, axis=-1, kind="stable")[:, :words]
                candidates[rows, step], likely[rows, step] = best, np.take_along_axis(found, best, axis=-1)
                before[rows, step + 1 : step + 2] = best[:, :1]
        return TextCheck(inputs, np.ascontiguousarray(candidates[..., 0]), candidates, likely).pack()

    @property
    def _writing(self) -> Writing:
        assert self._target.writing is not None, "the target writes text"
        return self._target.writing

    def _session(self) -> TextSession:
        """What writes with the tensors as they will be stored."""
        bundle, target = self._bundle, self._target
        delta = target.with_tensors(target.as_stored(self.trained))
        graphs = splice_text(*bundle.text_graphs, delta, bundle.manifest.backbone.sites, bundle.checkpoint)
        return TextSession(*map(self._open, graphs))

    def _open(self, graph: onnx.ModelProto) -> TaskSession:
        return TaskSession(open_session(graph, self._bundle.folder, self._threads), {}, None)

    def _beside(self, chosen: Sequence[int], labels: NDArray[Any]) -> Mapping[str, NDArray[Any]]:
        """What stands before each token of the targets."""
        return {BEFORE: self._before(labels)}

    def _before(self, targets: NDArray[np.int64]) -> NDArray[np.int64]:
        """[B, T] -> [B, T]: the start, and all but the last token; any word past a target's end."""
        start = np.full((len(targets), 1), self._writing.start_token_id)
        before: NDArray[np.int64] = np.maximum(np.concatenate([start, targets[:, :-1]], axis=1), 0)
        return before

    def _losses(self, inputs: Inputs, targets: NDArray[np.int64], kind: TaskType) -> NDArray[np.float64]:
        """[B]: as many rows at once as a step has."""
        losses, before = np.empty(len(targets)), self._before(targets)
        most = targets_at_once(targets.shape[1], self._writing.words)
        for place, given in passes(inputs, prompt=self._target.prompt_length):
            for start in range(0, len(place), most):
                some = slice(start, start + most)
                rows = place[some]
                logits = self._taught({name: values[some] for name, values in given.items()}, before[rows])
                losses[rows] = kind.losses(logits, targets[rows])
        return losses

    def _taught(self, inputs: Inputs, before: NDArray[np.int64]) -> NDArray[np.float32]:
        """Logits [B, T, v], by what is stored."""
        given = {name: np.ascontiguousarray(values) for name, values in {**inputs, BEFORE: before}.items()}
        return run_session(self._whole, LOGITS, {**self.given, **given})
