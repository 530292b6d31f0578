"""Text from elsewhere as a terminal or a log may show it."""

from __future__ import annotations

from unicodedata import category

__all__ = ["markdown_cell", "printable"]


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
