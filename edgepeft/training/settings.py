"""The numbers of a training run, checked before anything is loaded."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from edgepeft.backbones.base import Pooling
from edgepeft.common.errors import UsageError
from edgepeft.common.task_name import check_new_name
from edgepeft.data.training_loop.engine import BATCH, MEAN_HEAD_RATE, TrainingLoopOptions
from edgepeft.tasks._facts import CUT, WINDOWS
from edgepeft.tasks.base import TaskType, kind_asked

if TYPE_CHECKING:
    from edgepeft.backbones.source import Backbone
    from edgepeft.methods.base import Method

__all__ = ["TrainSettings"]

MAX_LENGTH = 128  # tokens of a text where none are given, as in GLUE's usual settings
_NOT_OF_THE_RUN = ("curve", "device")  # a resumed run may differ in them


@dataclasses.dataclass(frozen=True, kw_only=True)
class TrainSettings(TrainingLoopOptions):
    """A training loop's numbers, and what a new delta needs.

    ``kind`` is of the task; None takes the data's, and ``regression`` is short for the kind of that name.
    ``balanced`` weighs rows in the loss so that all labels weigh alike; ``curve`` trains on parts of the rows too.
    ``max_target_length`` is of text that is written, in tokens, its end included.  ``long`` is cut or windows, how
    texts of more than ``max_length`` are read, and ``stride`` how many tokens two windows share.  ``device`` is auto,
    cpu, cuda or mps; ``bf16`` has a step's forward in bfloat16.
    """

    task: str
    batch_size: int = BATCH
    max_length: int | None = None
    kind: str | None = None
    regression: bool = False
    balanced: bool = False
    head: str | None = None
    curve: bool = False
    max_target_length: int | None = None
    long: str | None = None
    stride: int | None = None
    device: str = "auto"
    bf16: bool = False

    def __post_init__(self) -> None:
        check_new_name(self.task)
        super().__post_init__()
        if self.kind or self.regression:
            asked = kind_asked(self.kind, regression=self.regression)
            object.__setattr__(self, "kind", asked.name)
            if self.balanced:
                asked.require_classes()
        self.require_at_least({"max_length": 3})  # a token between two special ones
        self.require_at_least({"max_target_length": 2})  # a token and the end
        self.require_at_least({"stride": 1})
        if self.long not in (None, CUT, WINDOWS):
            raise UsageError(f"--long {self.long}: texts are {CUT}, or read in {WINDOWS}.")

    def resolved(
        self, backbone: Backbone, method: Method, kind: TaskType, longest_target: int = MAX_LENGTH
    ) -> TrainSettings:
        """The same with every default filled in for this backbone, this method and this kind of task."""
        if self.kind not in (None, kind.name):
            raise UsageError(f"--kind {self.kind} is asked for, and the data is of {kind.title} (kind {kind.name}).")
        if kind.head is not None and self.head not in (None, kind.head):
            raise UsageError(f"{kind.title} needs the head {kind.head!r}, and --head {self.head} is another.")
        if self.balanced:
            kind.require_classes()
        if not kind.writes and self.max_target_length is not None:
            raise UsageError("--max-target-length is of text that is written, and here none is: --target, or --format.")
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
        of_text = self.max_length or min(MAX_LENGTH, longest)
        long = kind.long_asked(self.long, self.stride)
        return dataclasses.replace(
            self,
            max_length=of_text,
            long=long,
            stride=_shared(backbone, kind, of_text, self.stride) if long == WINDOWS else None,
            learning_rate=rate,
            head_learning_rate=self.head_learning_rate or head_rate,
            kind=kind.name,
            metric=kind.metric_or_default(self.metric),
            head=self.head or kind.head or backbone.head,
            max_target_length=(self.max_target_length or min(MAX_LENGTH, longest_target)) if kind.writes else None,
        )

    def plain(self) -> dict[str, Any]:
        """As plain values, for the card and for comparing a checkpoint with what is asked."""
        return {name: value for name, value in dataclasses.asdict(self).items() if name not in _NOT_OF_THE_RUN}


def _shared(backbone: Backbone, kind: TaskType, max_length: int, asked: int | None) -> int | None:
    """How many tokens two windows share; None where that is as passages always were read."""
    room = backbone.encoder().room(max_length, pairs=kind.passages)
    stride = kind.overlap(max_length) if asked is None else asked
    if stride >= room or not stride:
        beside = f"--max-length {max_length}: a window has room for {max(0, room)} tokens of a text beside special ones"
        if asked is not None and room > 1:
            raise UsageError(f"--stride {asked} must be less than what a window reads; {beside}.")
        raise UsageError(f"{beside}, and must read more than it shares with the next; give a greater --max-length.")
    return asked if kind.passages else stride
