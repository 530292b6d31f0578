"""The body of a request, which may hold so many rows and is not read where it holds more."""

from __future__ import annotations

import re
from functools import cache
from typing import TypeVar

from pydantic import BaseModel

from edgepeft.serve.problems import Refused

__all__ = ["parsed_body"]

Body = TypeVar("Body", bound=BaseModel)

_TOKENS_OF_A_ROW = 10  # strings, numbers, commas and brackets of a row with three fields
_TOKENS_BESIDE = 64  # of a request beside its rows


def parsed_body(content: bytes, model: type[Body], most_rows: int) -> Body:
    """What a body holds, once a search that ends at one too many has counted its strings and members."""
    most = _TOKENS_OF_A_ROW * most_rows + _TOKENS_BESIDE
    if _more_tokens_than(most).match(content):
        raise Refused(413, "too_many_rows", f"a request may hold {most_rows} rows; this one holds more than they need.")
    return model.model_validate_json(content)


@cache
def _more_tokens_than(count: int) -> re.Pattern[bytes]:
    return re.compile(rb'(?:[^"\[{,0-9]*+(?:"(?:[^"\\]++|\\.)*+"|[\[{,]|[0-9]{1,20}+)){%d}' % (count + 1), re.DOTALL)
