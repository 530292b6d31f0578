"""What people read: what is wrong with a document, in a sentence of ours; text from elsewhere, made safe to show."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import TYPE_CHECKING, Any
from unicodedata import category

if TYPE_CHECKING:
    from pydantic import ValidationError

# By pydantic's kinds of mistakes, with what it tells of each.
_NEEDED = {
    "bool_parsing": "true or false",
    "bool_type": "true or false",
    "dict_type": "an object",
    "enum": "{expected}",
    "finite_number": "a finite number",
    "float_parsing": "a number",
    "float_type": "a number",
    "greater_than": "a number above {gt:g}",
    "greater_than_equal": "a number of at least {ge:g}",
    "int_from_float": "a whole number",
    "int_parsing": "a whole number",
    "int_parsing_size": "a smaller number",
    "int_type": "a whole number",
    "less_than": "a number under {lt:g}",
    "less_than_equal": "a number of at most {le:g}",
    "list_type": "a list",
    "literal_error": "{expected}",
    "model_type": "an object",
    "string_pattern_mismatch": "text of the form {pattern}",
    "string_too_long": "text of {max_length} characters or less",
    "string_too_short": "text of {min_length} characters or more",
    "string_type": "text",
    "string_unicode": "text in Unicode",
    "too_long": "a list of {max_length} or less",
    "too_short": "a list of {min_length} or more",
    "tuple_type": "a list",
}
_BRANCHES = {"int", "float", "str", "bool"}  # of a value that may be of several kinds, as the last part of its place
_KINDS = {str: "text", bool: "true or false", dict: "an object", type(None): "null", int: "a number", float: "a number"}
_SHOWN = 80  # characters of what was found
_MAX_MISTAKES = 2000  # of which pydantic makes a list in milliseconds: it has each mistake's place, value and words


def mistakes_text(error: ValidationError, whole: str = "the document", names: Collection[str] | None = None) -> str:
    """The first mistake, without a full stop; ``whole`` is what was read.  Thousands of them are only counted.

    With ``names`` no value is told, and no key but these and one that is not known: for answers to whoever sent the
    document.
    """
    if not (mistakes := listed_mistakes(error)):
        return f"{whole} has {error.error_count():,} mistakes"
    first = _place(mistakes[0], names)
    within = [each for each in mistakes if _place(each, names)[: len(first)] == first]
    # Of kinds that a value may have, the one whose parts were looked at is the one that was meant.
    deepest = max(within, key=lambda each: len(each["loc"]))
    place = _place(deepest, names)
    return mistake(deepest, whole, names, [each for each in within if _place(each, names) == place])


def listed_mistakes(error: ValidationError) -> list[Mapping[str, Any]]:
    """What pydantic found; nothing where it is thousands of mistakes, a list of which takes seconds and gigabytes."""
    if error.error_count() > _MAX_MISTAKES:
        return []
    return [dict(each) for each in error.errors(include_url=False)]


def mistake(
    one: Mapping[str, Any],
    whole: str,
    names: Collection[str] | None = None,
    kinds: Collection[Mapping[str, Any]] = (),
) -> str:
    """One of pydantic's mistakes; ``kinds`` are all of that place, where it may hold values of several kinds."""
    where = ".".join(_place(one, names)) or whole
    if one["type"] == "json_invalid":
        line = re.search(r"line \d+ column \d+", str(one["ctx"]["error"]))
        return f"{where} is not JSON{f' ({line[0]})' if line else ''}"
    if one["type"] == "missing":
        return f"{where} is missing"
    if one["type"] == "extra_forbidden":
        return f"{where} is not a key that is known"
    if one["type"] == "value_error":
        return f"{where}: {one['ctx']['error']}"
    needed = dict.fromkeys(
        _NEEDED.get(each["type"], "something else ({msg})").format_map({"msg": each["msg"], **each.get("ctx", {})})
        for each in kinds or [one]
    )
    if "a number" in needed:
        needed.pop("a whole number", None)
    found = _shown(one["input"]) if names is None else _kind(one["input"])
    return f"{where} must be {' or '.join(needed)}, found {found}"


def _place(one: Mapping[str, Any], names: Collection[str] | None) -> list[str]:
    told = {*(one["loc"] if names is None else names), *(one["loc"][-1:] if one["type"] == "extra_forbidden" else ())}
    parts = [str(part)[:_SHOWN] for part in one["loc"] if isinstance(part, int) or part in told]
    return parts[:-1] if len(parts) > 1 and parts[-1] in _BRANCHES else parts


def _shown(value: object) -> str:
    if isinstance(value, (dict, list, tuple)):
        return _kind(value)
    try:
        return repr(value)[:_SHOWN]
    except ValueError:  # Python does not print an integer of more than 4300 digits
        return "a number that is too long"


def _kind(value: object) -> str:
    return f"a list of {len(value)}" if isinstance(value, (list, tuple)) else _KINDS.get(type(value), "something else")


def reason(error: Exception) -> str:
    """The first line of what a library's error says, at most 200 characters; its type where it says nothing."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]


_PLURALS = {"is": "are", "has": "have", "was": "were"}


def counted(n: int, words: str) -> str:
    """Return the number before a noun, and a verb behind it: ``1 row is``, ``2 rows are``."""
    noun, *verb = words.split()
    return f"{n:,} " + (words if n == 1 else " ".join([f"{noun}s", *(_PLURALS[each] for each in verb)]))


def first_of(told: Sequence[str], most: int = 3, between: str = ", ", n: int = 0) -> str:
    """Join the first ones and count the others: ``a, b, c and 2 more``; of ``n`` in all, ``told`` are the first."""
    shown = told if n else told[:most]
    more = (n or len(told)) - len(shown)
    return between.join(shown) + (f" and {more:,} more" if more else "")


def printable(text: str, keep: str = "\n\t") -> str:
    """The text with control, format and other unprintable characters escaped, but for spaces and those to ``keep``.

    Labels, names and messages come from bundles and data: a control character moves the cursor or hides what stands
    before it, a format character turns the direction of writing.
    """
    return "".join(
        c if c.isprintable() or c in keep or category(c) == "Zs" else c.encode("unicode_escape").decode() for c in text
    )


def markdown_cell(text: str) -> str:
    """The text on one line, for a cell of a Markdown table; nothing in it becomes markup."""
    return " ".join("".join(f"\\{c}" if c in "\\`*_[]<>|#!" else c for c in printable(text)).split())
