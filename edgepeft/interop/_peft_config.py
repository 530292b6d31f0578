"""PEFT's ``adapter_config.json``: what it says of a finished checkpoint, and what of it no delta can represent.

Source: peft 0.21.2, ``tuners/tuners_utils.py`` (which modules are targets), ``utils/other.py`` (patterns).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar

import regex
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError

from edgepeft.backbones.config import read_config
from edgepeft.errors import BundleError

__all__ = [
    "CONFIG_FILE",
    "PREFIX",
    "TASK_TYPE",
    "TENSORS_FILE",
    "LoraConfig",
    "NormConfig",
    "PeftConfig",
    "PromptConfig",
    "WrapConfig",
    "read_peft_config",
]

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of every tensor: PEFT's wrapper, then its tuner, where it has one
TASK_TYPE = "SEQ_CLS"
# Starts that leave the base model's weights alone; the others (pissa, olora, loftq, ...) change those too.
_HARMLESS_STARTS = (True, False, None, "gaussian", "eva", "orthogonal")

_PATIENCE_S = 2.0

_Names = str | list[str] | None


class PeftConfig(BaseModel):
    """What all of PEFT's methods have."""

    model_config = ConfigDict(frozen=True, extra="allow")
    prefix: ClassVar[str] = PREFIX
    # Fields that say nothing of a trained checkpoint: where it came from, how it was trained, started or is run.
    ignored: ClassVar[frozenset[str]] = frozenset(
        {"auto_mapping", "base_model_name_or_path", "inference_mode", "revision"}
    )

    peft_type: str
    task_type: str | None = None
    peft_version: str = "unknown"
    modules_to_save: _Names = None

    @property
    def saved(self) -> tuple[str, ...]:
        """Ends of the names of the modules that are stored whole."""
        given = self.modules_to_save or ()
        return (given,) if isinstance(given, str) else tuple(given)

    def saves(self, module: str) -> bool:
        """Whether the module, or one that it lies in, is stored whole."""
        parts = module.split(".")
        paths = (".".join(parts[: i + 1]) for i in range(len(parts)))
        return any(path.endswith(end) for path in paths for end in self.saved)

    def unsupported(self) -> list[str]:
        """Settings in force that no delta can represent, as ``name = value``."""
        return [
            f"{name} = {value!r}"
            for name, value in (self.model_extra or {}).items()
            if value and name not in self.ignored
        ]


class WrapConfig(PeftConfig):
    """What PEFT's methods have that wrap modules."""

    target_modules: _Names
    exclude_modules: _Names = None

    def targets(self, modules: Iterable[str]) -> tuple[str, ...]:
        """Those of the modules that PEFT adapts."""
        return tuple(module for module in modules if self._is_target(module))

    def _is_target(self, module: str) -> bool:
        excluded = self.exclude_modules and _matches(self.exclude_modules, module)
        inside = any(re.match(rf"(^|.*\.){re.escape(name)}($|\..*)", module) for name in self.saved)
        return not excluded and not inside and _matches(self.target_modules or (), module)


class LoraConfig(WrapConfig):
    """PEFT's LoRA."""

    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "lora_dropout",
        "fan_in_fan_out",  # of GPT-2's Conv1D; PEFT itself turns it off on a linear layer
        "megatron_core",  # a module's name, used with megatron_config only
        "qalora_group_size",  # with use_qalora only
        "ensure_weight_tying",
        "eva_config",
        "runtime_config",
    }

    r: int = Field(ge=1, strict=True)
    lora_alpha: FiniteFloat
    use_rslora: bool = False
    bias: Literal["none", "all", "lora_only"] = "none"
    rank_pattern: dict[str, Annotated[int, Field(ge=1)]] | None = None
    alpha_pattern: dict[str, FiniteFloat] | None = None
    layers_to_transform: int | list[int] | None = None
    layers_pattern: str | list[str] | None = None
    init_lora_weights: bool | str | None = True

    def rank(self, module: str) -> int:
        """r at that module."""
        return _by_pattern(self.rank_pattern or {}, module, self.r)

    def alpha(self, module: str) -> float:
        """The scale's numerator at that module."""
        return _by_pattern(self.alpha_pattern or {}, module, self.lora_alpha)

    def scale(self, module: str) -> float:
        """What B A x is multiplied by at that module."""
        rank = self.rank(module)
        return self.alpha(module) / (rank**0.5 if self.use_rslora else rank)

    def unsupported(self) -> list[str]:
        """As its base says; starts that changed the base model's weights too."""
        start = (
            [] if self.init_lora_weights in _HARMLESS_STARTS else [f"init_lora_weights = {self.init_lora_weights!r}"]
        )
        return start + super().unsupported()

    def _is_target(self, module: str) -> bool:
        return super()._is_target(module) and (isinstance(self.target_modules, str) or self._is_chosen_layer(module))

    def _is_chosen_layer(self, module: str) -> bool:
        chosen = self.layers_to_transform
        if chosen is None or chosen == []:
            return True
        names = [self.layers_pattern] if isinstance(self.layers_pattern, str) else self.layers_pattern
        patterns = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in names or ()] or [r".*?\.[^.]*\.(\d+)\."]
        found = next((match for match in (_match(pattern, module) for pattern in patterns) if match), None)
        return found is not None and int(found[1]) in ([chosen] if isinstance(chosen, int) else chosen)


class NormConfig(WrapConfig):
    """PEFT's LayerNorm tuning."""


class PromptConfig(PeftConfig):
    """PEFT's prompt tuning."""

    prefix: ClassVar[str] = "base_model."
    ignored: ClassVar[frozenset[str]] = PeftConfig.ignored | {
        "num_attention_heads",  # for prefixes
        "prompt_tuning_init",
        "prompt_tuning_init_text",
        "tokenizer_kwargs",
        "tokenizer_name_or_path",
    }

    num_virtual_tokens: int = Field(ge=1, strict=True)
    token_dim: int
    num_layers: int
    num_transformer_submodules: Literal[1] = 1


_KINDS: Mapping[str, type[PeftConfig]] = {"LORA": LoraConfig, "LN_TUNING": NormConfig, "PROMPT_TUNING": PromptConfig}


def read_peft_config(folder: Path) -> PeftConfig:
    """The checkpoint's config, if a delta can represent what it describes.

    Raises:
        BundleError: not such a file, or another method, task type or setting; each is named.
    """
    path = folder / CONFIG_FILE
    document = read_config(path)
    kind, task = document.get("peft_type"), document.get("task_type")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise BundleError(f"{path}: PEFT's {kind} cannot be imported; what can: {', '.join(_KINDS)}.")
    if task not in (TASK_TYPE, None):
        raise BundleError(f"{path}: a checkpoint of task type {task} cannot be imported; what can: {TASK_TYPE}.")
    config = _validated(_KINDS[kind], document, path)
    unsupported = config.unsupported()
    if unsupported:
        raise BundleError(f"{path}: no delta can represent {', '.join(unsupported)}.")
    return config


def _validated(kind: type[PeftConfig], document: dict[str, Any], path: Path) -> PeftConfig:
    try:
        config = kind.model_validate(document)
        if isinstance(config, WrapConfig):
            config.targets(["some.layer.0.module"])  # patterns are regular expressions, and may be none
        if isinstance(config, LoraConfig):
            config.scale("some.layer.0.module")
    except ValidationError as error:
        first = error.errors()[0]
        raise BundleError(f"{path}: {'.'.join(map(str, first['loc']))}: {first['msg']}.") from error
    except regex.error as error:
        raise BundleError(f"{path}: {error.pattern!r} is no regular expression ({error}).") from error
    return config


def _matches(wanted: str | Iterable[str], module: str) -> bool:
    """A text is a pattern for the whole name; a list has names, or their ends after a dot."""
    if isinstance(wanted, str):
        return _match(rf"(?:{wanted})\Z", module) is not None
    return any(module == name or module.endswith(f".{name}") for name in wanted)


def _match(pattern: str, module: str) -> Any:
    """``re.match`` with an end: a stranger's pattern may try longer than anyone waits.

    Raises:
        BundleError: it has not come to an end.
    """
    try:
        return regex.match(pattern, module, timeout=_PATIENCE_S)
    except TimeoutError:
        raise BundleError(f"the pattern {pattern!r} takes longer than {_PATIENCE_S:g} s on {module}.") from None


_Value = TypeVar("_Value", int, float)


def _by_pattern(patterns: Mapping[str, _Value], module: str, default: _Value) -> _Value:
    found = (value for pattern, value in patterns.items() if _match(rf"(.*\.)?({pattern})$", module))
    return next(found, default)
