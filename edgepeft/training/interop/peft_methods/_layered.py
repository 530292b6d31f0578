"""What PEFT's methods have in common that adapt chosen layers, each linear layer with a rank and a scale.

Source: peft 0.21.2, ``tuners/tuners_utils.py`` (``check_target_module_exists``), ``utils/other.py`` (patterns).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from typing import Annotated, Any, TypeVar

from pydantic import Field, FiniteFloat

from edgepeft.backbones.base import LINEAR_ROLES, Site
from edgepeft.methods.base import crossed
from edgepeft.training.interop.classifier import Classifier
from edgepeft.training.interop.peft_methods.base import WrapConfig, match_pattern

__all__ = ["LayeredConfig", "RankedConfig"]

_Value = TypeVar("_Value", int, float)


class LayeredConfig(WrapConfig):
    """Target modules in some layers alone."""

    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None

    def places(self, sites: Collection[Site], classifier: Classifier) -> dict[str, Any]:
        """These sites, as the settings that our methods have for linear layers; others of these roles come along."""
        found = {site.role for site in sites}
        return {
            "roles": tuple(str(role) for role in LINEAR_ROLES if not found.isdisjoint((role, *crossed((role,))))),
            "cross_attention": not found.isdisjoint(crossed(LINEAR_ROLES)),
            **self.without_modules(sites, classifier),
        }

    def _is_target(self, module: str) -> bool:
        return super()._is_target(module) and (isinstance(self.target_modules, str) or self._is_chosen_layer(module))

    def _is_chosen_layer(self, module: str) -> bool:
        chosen = self.layers_to_transform
        if chosen is None or chosen == []:
            return True
        names = [self.layers_pattern] if isinstance(self.layers_pattern, str) else self.layers_pattern
        patterns = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in names or ()] or [r".*?\.[^.]*\.(\d+)\."]
        matches = (match_pattern(pattern, module) for pattern in patterns)
        layer = next((matched[1] for matched in matches if matched), None)
        return layer is not None and int(layer) in ([chosen] if isinstance(chosen, int) else chosen)


class RankedConfig(LayeredConfig):
    """Ranks and alphas, which modules may have of their own."""

    r: int = Field(ge=1, strict=True)
    rank_pattern: dict[str, Annotated[int, Field(ge=1)]] | None = None
    alpha_pattern: dict[str, FiniteFloat] | None = None

    @property
    @abstractmethod
    def usual_alpha(self) -> float:
        """The scale's numerator where no pattern says another."""

    def rank_at(self, module: str) -> int:
        """r at that module."""
        return _by_pattern(self.rank_pattern or {}, module, self.r)

    def alpha_at(self, module: str) -> float:
        """The scale's numerator at that module."""
        return _by_pattern(self.alpha_pattern or {}, module, self.usual_alpha)

    def scale_at(self, module: str) -> float:
        """What the update is multiplied by at that module."""
        return self.alpha_at(module) / self.rank_at(module)

    def check_patterns(self) -> None:
        """As its base does; those of ranks and alphas too."""
        super().check_patterns()
        self.scale_at("some.layer.0.module")


def _by_pattern(patterns: Mapping[str, _Value], module: str, default: _Value) -> _Value:
    return next(
        (value for pattern, value in patterns.items() if match_pattern(rf"(.*\.)?({pattern})$", module)), default
    )
