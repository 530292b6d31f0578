"""PEFT's LoHa (``LOHA``): two pairs of factors a linear layer.

Source: peft 0.21.2, ``tuners/loha/layer.py``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from edgepeft.methods.loha import LoHa
from edgepeft.training.interop.peft_methods._lycoris import LycorisConfig

__all__ = ["LohaConfig"]


class LohaConfig(LycorisConfig):
    """Four factors."""

    kind: ClassVar[str] = "LOHA"
    ours: ClassVar[tuple[str, ...]] = (LoHa.name,)
    stem: ClassVar[str] = "hada_"

    def method(self, **settings: Any) -> LoHa:
        """Ours."""
        return LoHa(**settings)
