"""AdapterHub's checkpoints (bottleneck adapters of every form, fused ones, Compacter, PHM, LoRA, prompts, prefixes).

Nothing here needs adapters.  Names: adapters 1.3.0, ``loading.py``, whose own the golden checkpoints of the tests are.

AdapterFusion is a folder of ``save_adapter_setup`` with a Fuse of adapters, each in a folder of its own.  Theirs
computes k + sum_i p_i V A_i(z), p = softmax_i((Q z) . (K A_i(z))), of adapters in Pfeiffer's form, with the last one's
z and k.  V before or after the sum is the same.  Source: ``methods/modeling.py``, ``BertFusion``.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, Literal

import torch
from pydantic import BaseModel, ConfigDict, Field, FiniteFloat
from torch import Tensor
from torch.nn import functional

from edgepeft.backbones.base import Role
from edgepeft.backbones.config import read_config
from edgepeft.backbones.source import Backbone
from edgepeft.bundle.delta import Delta
from edgepeft.common.errors import BundleError, EdgepeftError
from edgepeft.methods._adapters import ACTIVATIONS
from edgepeft.methods.bottleneck import BottleneckAdapter
from edgepeft.methods.fusion import Fusion
from edgepeft.methods.lora import LoRA
from edgepeft.methods.mam import MAM
from edgepeft.methods.pfeiffer import Pfeiffer
from edgepeft.methods.prefix import PrefixTuning
from edgepeft.methods.prompt_r import PromptR
from edgepeft.training.interop._hub_adapter import (
    ACTIVATION_NAMES,
    SHARED,
    BnConfig,
    HubFile,
    MethodConfig,
    Places,
    leading_layers,
)
from edgepeft.training.interop._hub_head import read_head
from edgepeft.training.interop.base import (
    ConversionPlan,
    ForeignConfig,
    Importer,
    ImportRequest,
    StateDict,
    check_tensors,
    parsed,
    read_state_dict,
)
from edgepeft.training.interop.classifier import CAUSAL, SEQUENCES, Classifier

SETUP_FILE = "adapter_setup.json"
FUSION_FILES = ("model_adapter_fusion.safetensors", "pytorch_model_adapter_fusion.bin")


class _Setup(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore")

    adapter_setup: dict[str, Any]
    head_setup: Any = None


class FusionConfig(ForeignConfig):
    """Its settings; what is ignored is of training, or the same by another way."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "dropout_prob",
        "regularization",
        "value_before_softmax",
        "value_initialized",
    }

    query: Literal[True]
    key: Literal[True]
    value: bool
    query_before_ln: Literal[False] = False
    residual_before: Literal[False] = False
    temperature: Literal[False] = False

    def plan(self, parts: Sequence[ConversionPlan], places: Places) -> ConversionPlan:
        """The adapters' plans and the fusion's tensors as one; ``places`` are the fusion's."""
        adapters = [m for m in (part.method for part in parts) if isinstance(m, Pfeiffer) and m.placement == "ffn"]
        if len(adapters) != len(parts) or len({replace(each, bottleneck=1) for each in adapters}) != 1:
            found = "; ".join(f"{part.method.title} {part.method.settings()}" for part in parts)
            raise BundleError(
                "adapters that are fused must all be in Pfeiffer's form (seq_bn) with one activation, in the same "
                f"layers; found {found}. Train a fusion of such, or import one adapter."
            )
        first, width = adapters[0], max(each.bottleneck for each in adapters)
        own = {"adapters": len(parts), "bottleneck": width, "value": self.value, "activation": first.activation}
        layers = {"skip_layers": first.skip_layers, "leave_out": first.leave_out}
        method, architecture = Fusion.from_settings({**own, **layers}), places.classifier.architecture
        used = {site.name for site in method.sites(architecture)}
        names: dict[str, tuple[str, tuple[int, ...]]] = {}
        for site in Fusion.from_settings(own).sites(architecture):  # theirs has it in layers without adapters, too
            d, start = site.out_features, places.of_adapter(site).replace(".adapters.", ".adapter_fusion_layer.")
            for part in ("query", "key", *(["value"] if self.value else [])):
                names[f"{start}{part}.weight"] = (f"{site.name}/{part}.weight", (d, d))
            names |= {f"{start}{part}.bias": (f"{site.name}/{part}.bias", (d,)) for part in ("query", "key")}

        def convert(state: StateDict) -> dict[str, Tensor]:
            values = {ours: state[theirs] for theirs, (ours, _) in names.items() if ours.partition("/")[0] in used}
            for i, (adapter, part) in enumerate(zip(adapters, parts, strict=True)):
                more = width - adapter.bottleneck  # zeros fill up to the widest
                filled = {
                    "down.weight": (0, 0, 0, more),
                    "down.bias": (0, more),
                    "up.weight": (0, more),
                    "up.bias": (0, 0),
                }
                for name, tensor in part.convert(state).items():
                    site_name, _, of = name.partition("/")
                    values[f"{site_name}/adapters.{i}.{of}"] = functional.pad(tensor, filled[of])
            return values

        shapes = {theirs: shape for theirs, (_, shape) in names.items()}
        return ConversionPlan(method, shapes | {name: s for part in parts for name, s in part.shapes.items()}, convert)


def _is_name(value: object) -> bool:
    """Whether it is a folder's in the setup's, and no path to another place."""
    return isinstance(value, str) and value not in ("", ".", "..") and not {"/", "\\", "\0"} & set(value)


CONFIG_FILE = "adapter_config.json"
TENSORS_FILES = ("adapter.safetensors", "pytorch_adapter.bin")
FUSION_CONFIG = "adapter_fusion_config.json"
LORA_MATRICES = {"q": Role.QUERY, "k": Role.KEY, "v": Role.VALUE}
# Files that say that a folder holds more than one adapter's forward pass.
_COMPOSITIONS = {
    FUSION_CONFIG: "an AdapterFusion layer without its adapters",
    "adapter_interface.json": "an adapter of a model with an interface of its own",
}

_SCORED = ("distilbert",)  # whose masks of ones their code adds to scores
_POOL = ".prefix_tuning.pool."
_FLEXIBLE = "transformer."  # what their own class puts before T5's names
# Their older names -> today's, as their loader has them.
_LEGACY = {
    "attention_text_task_adapters": "adapters",
    "attention_text_lang_adapters": "adapters",
    "layer_text_task_adapters": "adapters",
    "layer_text_lang_adapters": "adapters",
}


class HubLoraConfig(MethodConfig):
    """Their LoRA."""

    r: int = Field(default=8, ge=1)
    alpha: FiniteFloat = 8.0
    attn_matrices: list[Literal["q", "k", "v"]] = Field(default=["q", "v"])
    selfattn_lora: bool = True
    intermediate_lora: bool = False
    output_lora: bool = False
    composition_mode: Literal["add"] = "add"
    vera_d: None = None
    vera_b: None = None
    dtype: Literal["float32"] | None = None

    def plan(self, places: Places) -> ConversionPlan:
        architecture = places.classifier.architecture
        attention = [role for key, role in LORA_MATRICES.items() if self.selfattn_lora and key in self.attn_matrices]
        up = Role.FFN_UP if architecture.sites_of(Role.FFN_UP) else Role.FFN_GATED
        feed_forward = {up: self.intermediate_lora, Role.FFN_OUTPUT: self.output_lora}
        roles = tuple(map(str, (*attention, *(role for role, wanted in feed_forward.items() if wanted))))
        layers = leading_layers(self, architecture)
        layers["cross_attention"] = bool(attention) and architecture.decoder is not None  # theirs wraps every attention
        method = LoRA(rank=self.r, alpha=self.alpha, roles=roles, **layers)
        names: dict[str, tuple[str, tuple[int, ...]]] = {}
        for site in method.sites(architecture):
            theirs = f"{places.classifier.prefix}{site.reads}.loras.{places.adapter}."
            names[f"{theirs}lora_A"] = (f"{site.name}/A", (self.r, site.in_features))
            names[f"{theirs}lora_B"] = (f"{site.name}/B", (site.out_features, self.r))
        return ConversionPlan.renaming(method, names)


class HubPromptConfig(MethodConfig):
    """Their prompt tuning."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "prompt_init",
        "prompt_init_text",
        "random_uniform_scale",
    }

    prompt_length: int = Field(default=10, ge=1)
    combine: Literal["prefix"] = "prefix"

    def plan(self, places: Places) -> ConversionPlan:
        if places.classifier.architecture.model_type in _SCORED:
            raise BundleError(
                "of a DistilBERT AdapterHub (1.3.0) adds 1 to the scores of a prompt's places and has it see padding, "
                "which no delta does. Train the prompt here, or with PEFT."
            )
        method = PromptR(length=self.prompt_length, place="embeddings")
        width = method.sites(places.classifier.architecture)[-1].out_features
        theirs = f"{places.classifier.prefix}prompt_tuning.prompt_tunings.{places.adapter}.prompt_embedding.weight"
        vectors = ("embeddings/vectors", (self.prompt_length, width))
        return ConversionPlan.renaming(method, {theirs: vectors})


class HubPrefixConfig(MethodConfig):
    """Their prefix tuning, whose vectors an MLP makes where it is not ``flat``."""

    ignored: ClassVar[frozenset[str]] = MethodConfig.ignored | {
        "cross_prefix",  # an encoder has no cross-attention
        "shared_gating",  # with use_gating only
    }

    prefix_length: int = Field(default=30, ge=1)
    flat: bool = False
    bottleneck_size: int = Field(default=512, ge=1)
    non_linearity: str = "tanh"
    encoder_prefix: Literal[True] = True
    use_gating: Literal[False] = False

    def checks(self) -> dict[str, bool]:
        return {"leave_out": not self.leave_out, "non_linearity": self.non_linearity.lower() in ACTIVATION_NAMES}

    def plan(self, places: Places) -> ConversionPlan:
        if places.classifier.architecture.model_type in _SCORED:
            raise BundleError(
                "of a DistilBERT AdapterHub (1.3.0) adds 1 to the scores of a prefix's places, which no delta does. "
                "Train the prefix here."
            )
        method = PrefixTuning(length=self.prefix_length)
        pairs = [site for site in method.sites(places.classifier.architecture) if site.layer is not None]
        width, k = pairs[0].out_features, self.bottleneck_size
        whole = len(pairs) * width
        stem = f"{places.classifier.prefix}prefix_tuning.prefix_tunings.{places.adapter}.self_prefix."
        made, ours = f"{stem}control_trans", tuple(f"{site.name}/vectors" for site in pairs)
        mlp = {f"{made}.0.weight": (k, width), f"{made}.0.bias": (k,)}
        mlp |= {f"{made}.2.weight": (whole, k), f"{made}.2.bias": (whole,), f"{stem}wte.weight": (method.length, width)}

        def convert(state: StateDict) -> dict[str, Tensor]:
            if self.flat:
                vectors = state[made].view(method.length, whole)
            else:
                act = ACTIVATIONS[ACTIVATION_NAMES[self.non_linearity.lower()]]
                down, down_bias, up, up_bias, table = (state[name] for name in mlp)
                vectors = act(table @ down.T + down_bias) @ up.T + up_bias
            return dict(zip(ours, torch.split(vectors, width, dim=1), strict=True))

        if self.flat:
            return ConversionPlan(method, {made: (method.length * whole,)}, convert, joined={made: ours})
        return ConversionPlan(method, mlp, convert)


class HubUnionConfig(MethodConfig):
    """Several methods in one adapter, such as their MAM and UniPELT."""

    configs: list[dict[str, Any]]

    def plan(self, places: Places) -> ConversionPlan:
        parts = [plan_of(settings, places, Path(f"configs[{i}]"))[1] for i, settings in enumerate(self.configs)]
        prefix = next((part.method for part in parts if isinstance(part.method, PrefixTuning)), None)
        adapter = next((part.method for part in parts if isinstance(part.method, BottleneckAdapter)), None)
        if len(parts) == 2 and prefix is not None and adapter is not None:
            method = MAM(length=prefix.length, bottleneck=adapter.bottleneck, activation=adapter.activation)
            if method.adapter == adapter:
                shapes = {name: shape for part in parts for name, shape in part.shapes.items()}
                return ConversionPlan(
                    method,
                    shapes,
                    lambda state: {name: t for part in parts for name, t in part.convert(state).items()},
                    tuple(pair for part in parts for pair in part.names),
                    {theirs: ours for part in parts for theirs, ours in part.joined.items()},
                )
        raise BundleError(
            f"a union of {' and '.join(part.method.title for part in parts)} is no delta; what can be is MAM: a prefix "
            "and a parallel adapter (par_bn) after each feed-forward. Train one of the methods alone."
        )


# Their ``architecture`` -> its config; a new method is one entry.
_METHODS: Mapping[str | None, type[MethodConfig]] = {
    None: BnConfig,
    "lora": HubLoraConfig,
    "prefix_tuning": HubPrefixConfig,
    "prompt_tuning": HubPromptConfig,
    "union": HubUnionConfig,
}


class AdapterHub(Importer):
    """Folders of ``save_adapter``."""

    library: ClassVar[str] = "AdapterHub"
    needs: ClassVar[str] = f"{CONFIG_FILE} with model_type, {' or '.join(TENSORS_FILES)}, or {SETUP_FILE}"

    def recognises(self, folder: Path) -> bool:
        if any((folder / name).is_file() for name in (*_COMPOSITIONS, SETUP_FILE)):
            return True
        path = folder / CONFIG_FILE
        if not path.is_file():
            return False
        document = read_config(path)
        return "peft_type" not in document and ("model_type" in document or "config" in document)

    def read(self, folder: Path, backbone: Backbone, request: ImportRequest) -> Delta:
        for name, what in _COMPOSITIONS.items():
            if (folder / name).is_file():
                raise BundleError(
                    f"{folder} has {name}: {what}, which no delta can represent. A folder of save_adapter, with one "
                    "adapter, can be imported, and one of save_adapter_setup with a Fuse of several."
                )
        classifier, of_head = Classifier(backbone, CAUSAL if backbone.architecture.decoder_only else SEQUENCES), folder
        if (folder / SETUP_FILE).is_file():
            (file, config, plan, state), of_head = _fused(folder, classifier)
        else:
            file, config, plan, state = _single(folder, classifier)
        check_tensors(state, plan.shapes, folder)
        head, values = read_head(of_head, classifier, request.model), plan.convert(state)
        # adapter-transformers, the predecessor of adapters, wrote no version or a bare one.
        origin: dict[str, Any] = {"versions": {"adapters": (file.version or "unknown").removeprefix("adapters.")}}
        origin["training"] = {"config": {"name": file.name, **config.model_dump(mode="json", exclude_unset=True)}}
        return request.delta(backbone, plan.method, head, values, folder=folder, library=self.library, **origin)


def _file_of(path: Path, classifier: Classifier) -> tuple[HubFile, Places]:
    file = parsed(HubFile, read_config(path), path)
    file.check_architecture(classifier.architecture, path)
    if file.name is None or file.config is None:
        absent = "name" if file.name is None else "config"
        raise BundleError(f"{path} has no {absent}; it is no config that save_adapter writes: save the adapter again.")
    return file, Places(classifier, file.name)


_Read = tuple[HubFile, ForeignConfig, ConversionPlan, dict[str, Tensor]]


def _single(folder: Path, classifier: Classifier) -> _Read:
    path = folder / CONFIG_FILE
    file, places = _file_of(path, classifier)
    config, plan = plan_of(file.method_settings(), places, path)
    # By today's names, in transformers' own class.
    stored = read_state_dict(folder, *TENSORS_FILES)
    state = {}
    for name, tensor in stored.items():
        if _POOL in name:
            continue  # each layer has all prefixes once more
        if classifier.has_decoder:
            name = name.removeprefix(_FLEXIBLE)  # noqa: PLW2901
        for old, new in _LEGACY.items():
            name = name.replace(old, new)  # noqa: PLW2901
        state[name] = tensor
    missing = [name for name in plan.shapes if name.startswith(f"{classifier.prefix}{SHARED}") and name not in state]
    if classifier.has_decoder and missing:
        raise BundleError(
            f"{folder} has no {', '.join(missing)}: over transformers' own class AdapterHub does not save what all "
            "adapters of a T5 share, and without it they are lost. Save the adapter from AdapterHub's T5AdapterModel."
        )
    return file, config, plan, state


def _fused(folder: Path, classifier: Classifier) -> tuple[_Read, Path]:
    """A Fuse of several adapters, each in a folder of its own, which stands as one; and the folder of the head."""
    path = folder / SETUP_FILE
    setup = parsed(_Setup, read_config(path), path)
    kind, children = setup.adapter_setup.get("type"), setup.adapter_setup.get("children") or []
    single = [each.get("children") for each in children if isinstance(each, dict) and each.get("type") == "single"]
    names = [name for each in single if isinstance(each, list) for name in each]
    if kind != "Fuse" or len(names) != len(children) or not all(map(_is_name, names)):
        raise BundleError(
            f"{path}: a composition of type {kind} with these parts is no delta; what can be is a Fuse of adapters. A "
            "folder of save_adapter, with one adapter, can be imported too."
        )
    if classifier.has_decoder:
        raise BundleError(f"{folder}: a fusion in a T5 cannot be imported; import one of its adapters.")
    fusion, of_head = folder / ",".join(names), folder / (setup.head_setup if _is_name(setup.head_setup) else "")
    file, places = _file_of(fusion / FUSION_CONFIG, classifier)
    config = FusionConfig.read(file.config or {}, fusion / FUSION_CONFIG)
    state = read_state_dict(fusion, *FUSION_FILES)
    parts = []
    for name in names:
        *_, plan, own = _single(folder / name, classifier)
        parts.append(plan)
        state |= own
    return (file, config, config.plan(parts, places), state), of_head


def plan_of(settings: Mapping[str, Any], places: Places, path: Path) -> tuple[MethodConfig, ConversionPlan]:
    """The config of a method, of which ``path`` names the file, and how its tensors become ours."""
    kind = settings.get("architecture")
    if not (kind is None or isinstance(kind, str)) or kind not in _METHODS:
        known = ", ".join(kind or "bottleneck adapters (which have no architecture)" for kind in _METHODS)
        raise BundleError(f"{path}: AdapterHub's {kind} cannot be imported; what can: {known}.")
    config = _METHODS[kind].read(settings, path)
    try:
        return config, config.plan(places)
    except EdgepeftError as error:  # of our methods' settings, or of widths that do not fit
        raise BundleError(f"{path}: {error}") from error
