"""``--set name=value`` as a dictionary."""

from __future__ import annotations

from collections.abc import Iterable

from edgepeft.errors import UsageError

__all__ = ["SETTINGS_HELP", "settings_of"]

SETTINGS_HELP = "A hyperparameter of the method: name=value; may repeat."


def settings_of(pairs: Iterable[str]) -> dict[str, str]:
    """``["rank=8"]`` -> ``{"rank": "8"}``.

    Raises:
        UsageError: no ``=`` in one of them.
    """
    for pair in pairs:
        if "=" not in pair:
            raise UsageError(f"--set {pair}: name=value is needed, for example --set rank=8.")
    return dict(pair.split("=", 1) for pair in pairs)
