"""Text: words that the model's own decoder writes, by the cross entropy of their tokens (Raffel et al., 2020).

What is large stands where it is done: the head in ``heads.text``, training in ``training.text_engine``, writing in
``runtime.generation``, its check in ``deploy.verify``, its metrics in ``data.text_metrics``.

Letters: B rows, T tokens of the longest target, v vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from edgepeft.common.errors import UsageError
from edgepeft.data.answers import Prediction
from edgepeft.data.rows import Row
from edgepeft.data.text_metrics import DEFAULT, OF_ROWS, TEXT_METRICS, text_averaged, text_errors, text_rows, text_score
from edgepeft.tasks._facts import LossGraph, Metric
from edgepeft.tasks.base import TaskType
from edgepeft.tasks.classification import cross_entropy

if TYPE_CHECKING:
    from edgepeft.data.words import Read

Values = NDArray[Any]


def _metric(name: str) -> Metric:
    if name in OF_ROWS:
        return Metric.of(lambda _, known, texts: text_rows(name, texts, known), text_averaged(name), resampled=False)
    return Metric(lambda _, known, texts: text_score(name, texts, known), text_averaged(name), resampled=False)


@dataclass(frozen=True)
class Text(TaskType):
    """loss = mean over the tokens of -log softmax(logits)[token]; targets are tokens [B, T], NO_TARGET past their ends.

    To be scored, targets are the references of each row, and outputs are texts.
    """

    name: ClassVar[str] = "text"
    title: ClassVar[str] = "text"
    answers: ClassVar[str] = "text"
    default_metric: ClassVar[str] = DEFAULT
    metrics: ClassVar[Mapping[str, Metric]] = {name: _metric(name) for name in TEXT_METRICS}
    has_baselines: ClassVar[bool] = False  # neither a most frequent text nor a linear head on hidden states is a rival
    writes: ClassVar[bool] = True
    head: ClassVar[str] = "text"

    @classmethod
    def is_of(cls, labels: Sequence[str] | None, head_reads: str) -> bool:
        """The head reads what the decoder gives every word."""
        return head_reads == "text"

    @property
    def listed(self) -> str:
        """Any words."""
        return "text"

    @classmethod
    def example(cls, labels: Sequence[str] | None) -> tuple[str, None]:
        """A word."""
        return "a", None

    def targets(self, rows: Sequence[Row]) -> NoReturn:
        """Tokens, which ``data.batches`` makes: they take an encoder."""
        raise UsageError("rows whose answer is text are encoded together with it.")

    def made_targets(self, mask: NDArray[np.int64]) -> Values:
        """As many tokens as the row reads: words of any tokenizer, the second and third of a T5's."""
        return np.where(mask > 0, 3 + np.arange(mask.shape[1]) % 2, -100)

    def losses(self, logits: NDArray[np.float32], targets: Values) -> NDArray[np.float64]:
        """[B, T, v] and [B, T]: the mean over each row's tokens; in float64 a row at a time, for v is large."""
        losses = np.empty(len(targets))
        for i, (of_row, tokens) in enumerate(zip(logits, targets, strict=True)):
            known = np.flatnonzero(tokens >= 0)
            exact = of_row[known].astype(np.float64)
            exact -= exact.max(-1, keepdims=True)
            each = exact[np.arange(len(known)), tokens[known]]
            losses[i] = (np.log(np.exp(exact, out=exact).sum(-1)) - each).mean()
        return losses

    def loss(self, logits: Any, targets: Any, weights: Any = None) -> Any:
        """The mean over all rows' tokens."""
        known = targets >= 0
        each = logits.log_softmax(-1).gather(-1, targets.clamp(min=0).unsqueeze(-1)).squeeze(-1)
        return -(each * known).sum() / known.sum()

    def loss_graph(self, logits: str, labels: str) -> LossGraph:
        """(B, T, v) and (B, T); NO_TARGET is no column."""
        nodes = cross_entropy(logits, labels, 2, "loss/of_tokens")
        nodes.append(("ReduceSum", ["loss/of_tokens", "loss/last"], "loss/of_rows", {"keepdims": 0}))
        return LossGraph(nodes, integers=True, dims=("batch", "target"))

    def terms(self, targets: Values) -> Values:
        """The tokens."""
        counts: Values = (targets >= 0).sum(1)
        return counts

    def ignorant_loss(self, targets: Values, words: int = 0) -> float:
        """Of equal probabilities for all words."""
        return math.log(words)

    def outputs(self, logits: NDArray[Any]) -> NoReturn:
        """Texts are decoded token by token."""
        raise UsageError("text is written token by token.")

    def off(self, targets: Values, outputs: Values) -> NoReturn:
        """Nothing is compared with it."""
        raise UsageError("text has no baseline.")

    majority = regressed = off  # type: ignore[assignment]

    def errors(self, targets: Any, outputs: Any) -> dict[str, Any]:
        """``texts``: scores by which rows are averaged."""
        return {**text_errors(list(outputs), targets)}

    def predictions(
        self, task: str, logits: NDArray[np.float32], notes: Sequence[str], read: Sequence[Read] = ()
    ) -> list[Prediction]:
        """Texts are written by ``Runtime.write``."""
        raise UsageError(f"task {task} writes text; ask it with write.")
