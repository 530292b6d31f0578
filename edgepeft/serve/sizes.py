"""How much a request may hold, and how long its answer may take."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from starlette.requests import Request

from edgepeft.data.rows import CANDIDATES
from edgepeft.runtime.runtime import Readable
from edgepeft.serve.problems import Refused
from edgepeft.serve.schemas import TuneRequest
from edgepeft.serve.settings import ServiceLimits

__all__ = ["DEADLINE_HEADER", "check_taught", "check_texts", "deadline_of"]

DEADLINE_HEADER = "X-Deadline-Ms"


def check_texts(texts: Sequence[Readable], limits: ServiceLimits) -> None:
    """Check what is to be answered.

    Raises:
        Refused: too many rows, each candidate counted as one, or a text that is too long.
    """
    held = sum(map(_rows_of, texts))
    if held > limits.rows:
        raise Refused(413, "too_many_rows", f"a request may hold {limits.rows} rows; this one holds {held}.")
    for row, text in enumerate(texts):
        longest = _characters(text)
        if longest > limits.text_characters:
            raise Refused(
                413, "text_too_long", f"row {row}: a text may have {limits.text_characters} characters, not {longest}."
            )


def check_taught(asked: TuneRequest, limits: ServiceLimits) -> None:
    """Check the rows of a fine-tuning run.

    Raises:
        Refused: too many rows, a text or label that is too long, or a label that is no finite number.
    """
    most, most_rows = limits.text_characters, limits.tuning_rows
    if len(asked.rows) > most_rows:
        raise Refused(413, "too_many_rows", f"a request may hold {most_rows} rows; this one holds {len(asked.rows)}.")
    for row, each in enumerate(asked.rows):
        numeric = isinstance(each.label, float) and not math.isfinite(each.label)
        if numeric or max(_characters(each.given), len(str(each.label))) > most:
            raise Refused(422, "invalid", f"rows.{row}: a text may have {most} characters, and a label is finite.")


def deadline_of(request: Request) -> float | None:
    """Seconds until the answer is of no use; None where the request says nothing.

    Raises:
        Refused: the header is no number of milliseconds.
    """
    given = request.headers.get(DEADLINE_HEADER)
    if given is None:
        return None
    if not (given.isascii() and given.isdigit() and 0 < len(given) <= 9 and int(given) > 0):
        raise Refused(400, "invalid", f"{DEADLINE_HEADER} is a number of milliseconds.")
    return int(given) / 1000


def _rows_of(text: Readable) -> int:
    """Each candidate is computed as a row."""
    candidates = text.get(CANDIDATES) if isinstance(text, Mapping) else None
    return max(1, len(candidates)) if isinstance(candidates, list) else 1


def _characters(text: Readable) -> int:
    """Of its longest part."""
    if isinstance(text, str):
        return len(text)
    return max((len(str(part or "")) for part in (text.values() if isinstance(text, Mapping) else text)), default=0)
