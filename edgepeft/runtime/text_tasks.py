"""What a runtime does with tasks that write text: all at once, as a stream, or in a batch that rows join and leave."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Generator as Generates
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from edgepeft.backbones.tokens import Text, TextEncoder
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import UsageError
from edgepeft.runtime.decoding import GREEDY, Decoding
from edgepeft.runtime.generation import Generator
from edgepeft.runtime.inputs import Inputs, Readable, Truncation, texts_of
from edgepeft.runtime.mixed import Mixer
from edgepeft.runtime.prediction import Notes, TextAnswer
from edgepeft.runtime.text_generation import TextBatch

__all__ = ["TextTasks"]


class TextTasks(ABC):
    """A part of ``Runtime``, which has the rest."""

    bundle: Bundle
    generator: Generator
    truncation: Truncation
    _mixer: Mixer
    _notes: Notes

    @abstractmethod
    def prepare(self, task: str | None) -> None:
        """Open what answers a task's rows."""

    @abstractmethod
    def _encode(self, texts: Sequence[Readable], max_length: int, answers: int = 1) -> dict[str, NDArray[np.int64]]:
        """Tokens, cut."""

    @abstractmethod
    def _tokenizer(self) -> TextEncoder:
        """The bundle's."""

    def write(self, task: str, texts: str | Sequence[Readable], decoding: Decoding = GREEDY) -> list[TextAnswer]:
        """What a task writes for each text or pair, in order; longer ones are cut, and counted in ``truncation``.

        Raises:
            UsageError: the task writes no text.
            DoesNotFit: so many beams of so many tokens take more memory than is allowed.
            UnknownName, BundleError, DataError: as ``predict``.
        """
        read, inputs = self._read(task, texts)
        return self._told(self.generator.answers(task, read, inputs, decoding, self._tokenizer()))

    def writing(self, decoding: Decoding = GREEDY) -> TextBatch:
        """A batch that texts of tasks which write text, of one structure, join and leave while it goes on, greedily.

        Raises:
            UsageError: several beams.
            BundleError: the backbone writes no text.
        """
        return TextBatch(
            self.generator, self._mixer.text, decoding, encoder=self._tokenizer(), read=self._read, told=self._told
        )

    def stream(self, task: str, text: Readable, decoding: Decoding = GREEDY) -> Generates[str, None, TextAnswer]:
        """What a task writes for one text, piece by piece as it is written; the answer as a whole is the last value.

        Pieces are whole characters, and some are empty: a token may be part of one.

        Raises:
            UsageError, DoesNotFit, UnknownName, BundleError, DataError: as ``write``; or there are several beams.
        """
        batch = self.writing(decoding)
        (draft,) = batch.add(task, [text])
        while not draft.done:
            batch.step()
            yield batch.piece(draft)
        return batch.answer(draft)

    def _read(self, task: str, texts: object) -> tuple[list[Text], Inputs]:
        """What a task that writes text reads, and its tokens; opens the task."""
        entry = self.bundle.entry(task)
        if not entry.writes:
            raise UsageError(f"task {task} writes no text; ask it with predict.")
        read = texts_of(texts, entry.source)
        inputs = self._encode(read, entry.max_length)
        self.prepare(task)
        return read, inputs

    def _told(self, answers: list[TextAnswer]) -> list[TextAnswer]:
        self.truncation.texts += sum(not answer.ended for answer in answers)
        return self._notes.told(answers)
