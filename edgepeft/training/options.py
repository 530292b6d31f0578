"""What a training run is asked to do, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from edgepeft.backbones.base import Pooling
from edgepeft.data.course.options import BATCH, MEAN_HEAD_RATE, CourseOptions
from edgepeft.data.metrics import default_metric
from edgepeft.errors import UsageError
from edgepeft.task_name import check_new_name

if TYPE_CHECKING:
    from edgepeft.backbones.source import Backbone
    from edgepeft.methods.base import Method

__all__ = ["TrainOptions"]

MAX_LENGTH = 128  # tokens of a text where none are given, as in GLUE's usual settings
_NOT_OF_THE_RUN = ("curve", "device")  # a resumed run may differ in them


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainOptions(CourseOptions):
    """A course's numbers, and what a new delta needs.

    ``balanced`` weighs rows in the loss so that all labels weigh alike; ``curve`` trains on parts of the rows too.
    ``device`` is auto, cpu, cuda or mps; ``bf16`` has a step's forward in bfloat16.
    """

    task: str
    batch_size: int = BATCH
    max_length: int | None = None
    regression: bool = False
    balanced: bool = False
    head: str | None = None
    curve: bool = False
    device: str = "auto"
    bf16: bool = False

    def __post_init__(self) -> None:
        check_new_name(self.task)
        super().__post_init__()
        if self.balanced and self.regression:
            raise UsageError("--balanced weighs classes, and a --regression has none; leave one of them out.")
        self.require_at_least({"max_length": 3})  # a token between two special ones

    def resolved(self, backbone: Backbone, method: Method) -> TrainOptions:
        """The same with every default filled in for this backbone and method.

        Raises:
            UsageError: texts longer than the backbone has positions; a method that does not fit it.
        """
        method.sites(backbone.architecture)  # a prompt that leaves no room is named by its own length
        prompt = method.prompt_length
        longest = backbone.architecture.max_length - prompt
        if self.max_length is not None and self.max_length > longest:
            rest = f" beside a prompt of {prompt}" if prompt else ""
            raise UsageError(
                f"--max-length {self.max_length}: {backbone.source} has positions for {longest} tokens{rest}."
            )
        rate = self.learning_rate or method.learning_rate
        # What a head on a mean needs depends on the scale of that mean and hardly on the delta. Measured on MiniLM,
        # 600 rows, one epoch, test accuracy: BBC, houlsby at 3e-4, heads at 3e-4 / 6e-3 / 2e-2: 60.3 / 93.0 / 94.2 %;
        # SMS, pfeiffer at 1e-4, 2e-3 / 2e-2: 87.7 (the majority) / 90.2 %; full at 2e-5, 4e-4 / 2e-2: 87.7 / 90.1 %.
        # Heads on the first token follow the papers, which have one rate for all.
        head_rate = MEAN_HEAD_RATE if backbone.pooling is Pooling.MEAN else rate
        return dataclasses.replace(
            self,
            max_length=self.max_length or min(MAX_LENGTH, longest),
            learning_rate=rate,
            head_learning_rate=self.head_learning_rate or head_rate,
            metric=self.metric or default_metric(self.regression),
            head=self.head or backbone.head,
        )

    def plain(self) -> dict[str, Any]:
        """As plain values, for the card and for comparing a checkpoint with what is asked."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in _NOT_OF_THE_RUN}
