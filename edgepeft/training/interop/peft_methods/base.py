"""What a method of PEFT's is: the config of a finished checkpoint, how it comes in, and how ours goes out.

Source: peft 0.21.2, ``tuners/tuners_utils.py`` (which modules are targets), ``utils/other.py`` (patterns).

Regular expressions of foreign files are matched by a child process with two seconds and 256 MB for all of them: whoever
writes a pattern decides how long it takes, to compile, by its size, and to match, by how it repeats.  PEFT takes all of
Python's syntax, lookaheads and backreferences among it, which engines of linear time lack.
"""

import json
import re
import subprocess
import sys
from abc import abstractmethod
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, FiniteFloat, PrivateAttr
from torch import Tensor

from edgepeft.backbones.base import LINEAR_ROLES, Site
from edgepeft.backbones.config import read_config
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError
from edgepeft.common.registry import classes_of
from edgepeft.methods.base import crossed
from edgepeft.training.interop.base import ConversionPlan, ForeignConfig, left_out
from edgepeft.training.interop.classifier import ANSWERS, CAUSAL, GENERATION, SEQUENCES, TOKENS, VECTORS, Classifier

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"

_TASK_TYPES = {"SEQ_CLS": SEQUENCES, "TOKEN_CLS": TOKENS, "QUESTION_ANS": ANSWERS, "FEATURE_EXTRACTION": VECTORS}

_Names = str | list[str] | None
_Texts = Annotated[tuple[str, ...], BeforeValidator(lambda given: (given,) if isinstance(given, str) else given or ())]

_MAX_CHARACTERS = 10_000  # the longest that were seen list a hundred modules
_CHILD = """
import contextlib, json, sys
import regex
with contextlib.suppress(ImportError):  # Windows has none: there a match has its own time limit alone
    import resource
    resource.setrlimit(resource.RLIMIT_CPU, (core_s, core_s))
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
for line in sys.stdin:
    pattern, name = json.loads(line)
    try:
        found = regex.match(pattern, name, timeout=core_s)
        answer = None if found is None else [found[0], *found.groups()]
    except regex.error as error:
        answer = f"is no regular expression ({error})"
    except (TimeoutError, RecursionError, MemoryError):
        answer = "takes too long or too much memory"
    print(json.dumps(answer), flush=True)
"""


class Patterns:
    """The patterns of one file; the child starts with the first of them and ends with this object.

    ``where`` stands before what is wrong with a pattern.  Python and the library take a tenth of ``core_s`` to start.
    """

    def __init__(self, where: str = "", *, core_s: int = 2, memory_mb: int = 256) -> None:
        self.where = where
        self._limits = f"core_s, memory = {core_s}, {memory_mb << 20}\n"
        self._child: subprocess.Popen[str] | None = None

    def match(self, pattern: str, name: str) -> tuple[str | None, ...] | None:
        """What a pattern finds at a name's start, and its groups; None where it finds nothing."""
        if len(pattern) > _MAX_CHARACTERS:
            raise BundleError(
                f"{self.where}the pattern {pattern!r:.80} has {len(pattern):,} characters; list names of modules "
                "instead."
            )
        child = self._child = self._child or subprocess.Popen(
            [sys.executable, "-P", "-c", self._limits + _CHILD],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        try:
            assert child.stdin and child.stdout
            child.stdin.write(f"{json.dumps([pattern, name])}\n")
            child.stdin.flush()
            answer = json.loads(child.stdout.readline())
        except (OSError, ValueError):  # it was ended by its limits
            answer = "takes too long or too much memory, alone or with those before it"
        if isinstance(answer, str):
            raise BundleError(f"{self.where}the pattern {pattern!r:.80} {answer}; list names of modules instead.")
        return None if answer is None else tuple(answer)

    def __del__(self) -> None:
        """The child reads to the end of its input; what still matches is ended."""
        if self._child is not None:
            self._child.kill()
            self._child.communicate()


class PeftConfig(ForeignConfig):
    """What all of PEFT's methods have; a subclass in a file of this package is found by its ``kind``."""

    kind: ClassVar[str]  # the ``peft_type``
    ours: ClassVar[tuple[str, ...]] = ()  # our methods of which a delta can be written for PEFT
    prefix: ClassVar[str] = "base_model.model."  # of every tensor: PEFT's wrapper, then its tuner, where it has one
    unprefixed: ClassVar[Collection[str]] = ()  # tensors that ``written`` gives by their names in PEFT's file
    keeps_whole: ClassVar[bool] = False  # whether our method takes modules of the backbone that are stored whole
    # Fields that say nothing of a trained checkpoint: where it came from, how it was trained, started or is run.
    ignored: ClassVar[frozenset[str]] = frozenset({"base_model_name_or_path", "inference_mode", "revision"})

    peft_type: str
    task_type: str | None = None
    auto_mapping: dict[str, Any] | None = None  # which class was wrapped, where it has no task type
    peft_version: str = "unknown"
    modules_to_save: _Texts = ()  # of the names of the modules that are stored whole
    _patterns: Patterns = PrivateAttr(default_factory=Patterns)

    @abstractmethod
    def plan(self, classifier: Classifier, folder: Path) -> ConversionPlan:
        """Our method, and its tensors of theirs, the head's apart."""

    @classmethod
    def written(cls, delta: Delta, method: Any, classifier: Classifier) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """A delta of a ``method`` of ``ours`` as settings and tensors that theirs has for itself, the head's apart."""
        raise NotImplementedError(f"{cls.kind} cannot be written")

    def model(self, known: Mapping[str, str], asked: str | None) -> str:
        """How the wrapped class's name ends, of ``known`` by task type; as ``asked`` where nothing says it."""
        if self.task_type is not None:
            return known[self.task_type]
        wrapped = str((self.auto_mapping or {}).get("base_model_class"))
        said = next((model for model in known.values() if wrapped.endswith(model)), asked)  # the base model's end last
        return said if said is not None and said in known.values() else next(iter(known.values()))

    def saves(self, module: str) -> bool:
        """Whether the module, or one that it lies in, is stored whole."""
        parts = module.split(".")
        paths = (".".join(parts[: i + 1]) for i in range(len(parts)))
        return any(path.endswith(self.modules_to_save) for path in paths)


class WrapConfig(PeftConfig):
    """What PEFT's methods have that wrap modules."""

    target_modules: _Names
    exclude_modules: _Names = None

    def adapted(self, classifier: Classifier, known: Collection[str], what: str, folder: Path) -> tuple[str, ...]:
        """The modules that PEFT adapts; each must be one of those ``known``, whose kind ``what`` names."""
        targets = tuple(module for module in classifier.modules if self._is_target(module))
        odd = [module for module in targets if module not in known]
        if odd:
            raise BundleError(
                f"{folder} adapts what is no {what} of this backbone: {', '.join(odd)}. Train it with these in PEFT's "
                "exclude_modules."
            )
        if not targets:
            where = f"{classifier.architecture.model_type} has modules such as {next(iter(known))}"
            raise BundleError(f"{folder}: target_modules = {self.target_modules!r} matches nothing; {where}.")
        return targets

    def adapted_sites(self, classifier: Classifier, folder: Path) -> dict[str, Site]:
        """Those modules, of which each must be a linear layer with a site, with these."""
        targets = self.adapted(classifier, classifier.linear_sites, "linear layer with a site", folder)
        return {module: classifier.linear_sites[module] for module in targets}

    def without_modules(self, sites: Collection[Site], classifier: Classifier) -> dict[str, Any]:
        """The layers that have none of these sites, as the settings that our methods have for them."""
        used = {site.layer for site in sites}
        layers = {site.layer for site in classifier.linear_sites.values() if site.layer is not None}
        return left_out(layers - used)

    def _is_target(self, module: str) -> bool:
        excluded = self.exclude_modules and self._matches(self.exclude_modules, module)
        inside = any(re.match(rf"(^|.*\.){re.escape(name)}($|\..*)", module) for name in self.modules_to_save)
        return not excluded and not inside and self._matches(self.target_modules or (), module)

    def _matches(self, wanted: str | Iterable[str], module: str) -> bool:
        """A text is a pattern for the whole name; a list has names, or their ends after a dot."""
        if isinstance(wanted, str):
            return self._patterns.match(rf"(?:{wanted})\Z", module) is not None
        return any(module == name or module.endswith(f".{name}") for name in wanted)


def peft_methods() -> dict[str, type[PeftConfig]]:
    """Every method of PEFT's by its kind."""
    return classes_of("edgepeft.training.interop.peft_methods", PeftConfig, "kind")  # type: ignore[type-abstract]


def task_types(backbone: Backbone) -> Mapping[str, str]:
    """What PEFT calls the kinds of models of that backbone -> how transformers' class for it ends; the usual first."""
    if backbone.architecture.decoder is None:
        return _TASK_TYPES
    decoder_only = {"CAUSAL_LM": CAUSAL, "SEQ_CLS": SEQUENCES}
    return decoder_only if backbone.architecture.decoder_only else {"SEQ_2_SEQ_LM": GENERATION}


def read_peft_config(folder: Path, types: Collection[str]) -> PeftConfig:
    """The checkpoint's config, if a delta of a backbone of these task types can represent it."""
    path = folder / CONFIG_FILE
    document = read_config(path)
    kind, task = document.get("peft_type"), document.get("task_type")
    known = peft_methods()
    if not isinstance(kind, str) or kind not in known:
        raise BundleError(f"{path}: PEFT's {kind} cannot be imported; what can: {', '.join(known)}.")
    if task is not None and task not in list(types):
        raise BundleError(
            f"{path}: a checkpoint of task type {task} cannot be imported for this backbone; what can: "
            f"{', '.join(types)}."
        )
    config = known[kind].read(document, path)
    config._patterns = Patterns(f"{path}: ")
    return config


class LayeredConfig(WrapConfig):
    """Target modules in some layers alone."""

    layers_to_transform: int | list[int] | None = None
    layers_pattern: _Texts = ()

    def places(self, sites: Collection[Site], classifier: Classifier) -> dict[str, Any]:
        """These sites, as the settings that our methods have for linear layers; others of these roles come along."""
        found = {site.role for site in sites}
        return {
            "roles": tuple(str(role) for role in LINEAR_ROLES if not found.isdisjoint((role, *crossed((role,))))),
            "cross_attention": not found.isdisjoint(crossed(LINEAR_ROLES)),
            **self.without_modules(sites, classifier),
        }

    def _is_target(self, module: str) -> bool:
        chosen, fits = self.layers_to_transform, super()._is_target(module)
        if not fits or isinstance(self.target_modules, str) or chosen is None or chosen == []:
            return fits
        patterns = [rf"(?:^|.*?\.){name}\.(\d+)\." for name in self.layers_pattern] or [r".*?\.[^.]*\.(\d+)\."]
        matches = (self._patterns.match(pattern, module) for pattern in patterns)
        layer = next((matched[1] for matched in matches if matched), None) or ""
        return layer.isdecimal() and int(layer) in ([chosen] if isinstance(chosen, int) else chosen)


class RankedConfig(LayeredConfig):
    """Ranks and alphas, which modules may have of their own."""

    r: int = Field(ge=1, strict=True)
    alpha: FiniteFloat
    rank_pattern: dict[str, Annotated[int, Field(ge=1)]] | None = None
    alpha_pattern: dict[str, FiniteFloat] | None = None

    def rank_at(self, module: str) -> int:
        return int(self._by_pattern(self.rank_pattern, module, self.r))

    def alpha_at(self, module: str) -> float:
        return self._by_pattern(self.alpha_pattern, module, self.alpha)

    def scale_at(self, module: str) -> float:
        return self.alpha_at(module) / self.rank_at(module)

    def _by_pattern(self, patterns: Mapping[str, float] | None, module: str, default: float) -> float:
        known = (patterns or {}).items()
        return next((own for wanted, own in known if self._patterns.match(rf"(.*\.)?({wanted})$", module)), default)
