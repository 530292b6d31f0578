"""What both sides load: sites of one bundle, and the first of its tasks merged and exported for Transformers.js."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.peers.optimum_kinds import transformers_model
from edgepeft.backbones.source import Backbone, open_backbone
from edgepeft.backbones.tokens import Text
from edgepeft.bench.planning.target import fresh_delta
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import UsageError
from edgepeft.web.site import write_site

NINE = tuple(f"lora{number}" for number in range(9))
TENTH = "lora9"
OTHERS = ("pfeiffer", "houlsby", "bitfit", "compacter")  # of other structures, one each
SITES: dict[str, Sequence[str]] = {"nine": NINE, "mixed": (*NINE[:5], *OTHERS)}
PAGES = Path(__file__).parent / "pages"
_TOKENIZER = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "vocab.txt")
_LABELS = ("bad", "fair", "good")
_SPREAD = 0.03  # so that a task's own values move its answers
_CHECKED_ON = tuple(Text(text) for text in ("a bold and moving film", "flat", "it never gets going, and then it ends"))


def pages(work: Path) -> Path:
    """The folder that is served."""
    return work / "served"


def prepare(work: Path, backbone: str, modules: Path) -> None:
    """Write all of it into the new folder ``work``."""
    from edgepeft.training.exporting.bundle import export_bundle

    if work.exists():
        raise UsageError(f"{work} is there already; name a new folder, or go on with `measure {work}`.")
    source, served = _as_published(open_backbone(backbone).folder, work / "backbone"), pages(work)
    if source.head != "bert-pooler":
        raise UsageError(f"{backbone} has the head {source.head}; a backbone with BERT's pooler is needed.")
    served.mkdir()
    methods = {**dict.fromkeys((*NINE, TENTH), "lora"), **{method: method for method in OTHERS}}
    deltas = [
        _delta(source, method, task, work / "deltas" / task, seed)
        for seed, (task, method) in enumerate(methods.items())
    ]
    export_bundle(source, deltas, work / "bundle", texts=_CHECKED_ON)
    for site, tasks in SITES.items():
        write_pages(work, site, tasks)
    _write_models(work / "bundle", deltas[0], source, served / "models")
    (served / "bench").symlink_to(PAGES)
    (served / "lib").symlink_to(modules.resolve())


def write_pages(work: Path, site: str, tasks: Sequence[str]) -> Path:
    """A site of these tasks, with the page that tells when its first answer came."""
    out = pages(work) / site
    write_site(Bundle(work / "bundle"), out, tasks=tasks, force=True)
    for name in ("first.html", "first.js"):
        shutil.copyfile(PAGES / name, out / name)
    return out


def _as_published(folder: Path, out: Path) -> Backbone:
    """Without sentence-transformers' mean: transformers' class for texts reads the first token."""
    out.mkdir(parents=True)
    for name in ("config.json", "model.safetensors", *_TOKENIZER):
        if (folder / name).is_file():
            shutil.copyfile(folder / name, out / name)
    return open_backbone(str(out))


def _delta(backbone: Backbone, method: str, task: str, out: Path, seed: int) -> Path:
    import torch

    delta = fresh_delta(backbone, method, {}, seed, task=task, labels=_LABELS)
    for parameter in delta.parameters():
        parameter.data.add_(_SPREAD * torch.randn_like(parameter))
    delta.save(out)
    return out


def _write_models(bundle: Path, delta: Path, backbone: Backbone, out: Path) -> None:
    """Transformers.js' layout: the first task's weights under every task's name, for its size and its speed do not
    depend on what they are."""
    from optimum.exporters.onnx import main_export

    model, first = _merged(bundle, delta, backbone), out / NINE[0]
    model.save_pretrained(out / "merged")
    for path in (backbone.folder / name for name in _TOKENIZER):
        if path.is_file():
            shutil.copyfile(path, out / "merged" / path.name)
    main_export(str(out / "merged"), str(first), task="text-classification", do_validation=False)
    shutil.rmtree(out / "merged")
    (first / "onnx").mkdir()
    (first / "model.onnx").rename(first / "onnx" / "model.onnx")
    for task in NINE[1:]:
        shutil.copytree(first, out / task, copy_function=os.link)


def _merged(bundle: Path, folder: Path, backbone: Backbone) -> Any:
    """Transformers' model with W + scale B A in the place of each updated W."""
    from edgepeft.bundle.delta import Delta

    delta = Delta.load(folder, backbone)
    model = transformers_model(bundle, delta.card.task)
    for name, module in delta.site_modules.items():
        factors: Any = module
        weight = model.base_model.get_parameter(f"{delta.architecture.site(name).reads}.weight")
        weight.data.add_(factors.scale * factors.B.data @ factors.A.data)
    return model
