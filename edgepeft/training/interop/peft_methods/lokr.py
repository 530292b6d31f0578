"""PEFT's LoKr (``LOKR``): two matrices a linear layer, or their factors.

Source: peft 0.21.2, ``tuners/lokr/layer.py``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from pydantic import Field

from edgepeft.methods._linear_updates import RankedUpdates
from edgepeft.methods.lokr import LoKr
from edgepeft.training.interop.peft_methods._lycoris import LycorisConfig

__all__ = ["LokrConfig"]


class LokrConfig(LycorisConfig):
    """Which matrices are products is not said, but follows from ranks and widths."""

    kind: ClassVar[str] = "LOKR"
    ours: ClassVar[tuple[str, ...]] = (LoKr.name,)
    stem: ClassVar[str] = "lokr_"
    ignored: ClassVar[frozenset[str]] = LycorisConfig.ignored | {"rank_dropout_scale"}

    decompose_both: bool = False
    decompose_factor: int = Field(-1, ge=-1, strict=True)

    def method(self, **settings: Any) -> LoKr:
        """Ours."""
        return LoKr(both=self.decompose_both, factor=self.decompose_factor, **settings)

    @classmethod
    def more_settings(cls, method: RankedUpdates) -> dict[str, Any]:
        """What says how widths are parted."""
        assert isinstance(method, LoKr)
        return {
            "decompose_both": method.both,
            "decompose_factor": method.factor,
            "rank_dropout_scale": False,
        }
