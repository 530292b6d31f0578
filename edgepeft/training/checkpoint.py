"""Where a run stands, on disk: parameters, optimizer, random state, best so far.  safetensors and JSON, no pickle.

``OUT/checkpoint/<step>/`` appears whole under a name of its own; only then are older ones removed.  So
whenever the process dies, the newest folder is a whole checkpoint.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from edgepeft.backbones.config import read_config
from edgepeft.delta import Delta, write_tensors
from edgepeft.errors import BundleError, UsageError
from edgepeft.resources import new_folder, write_json

__all__ = ["FOLDER", "Position", "latest", "load_checkpoint", "save_checkpoint"]

FOLDER = "checkpoint"
FORMAT = "edgepeft.checkpoint/1"
TENSORS, STATE = "state.safetensors", "state.json"


@dataclasses.dataclass
class Position:
    """Steps done, and the best evaluation: (score, minus its loss), its step and its tensors."""

    step: int = 0
    best: tuple[float, float] | None = None
    best_step: int = 0
    best_tensors: dict[str, Tensor] = dataclasses.field(default_factory=dict)
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)


def latest(out: Path) -> Path | None:
    """The newest checkpoint of an output folder."""
    steps = (path for path in (out / FOLDER).glob("[0-9]*") if path.name.isdigit())
    return max(steps, key=lambda path: int(path.name), default=None)


def save_checkpoint(
    out: Path, position: Position, delta: Delta, optimizer: torch.optim.Optimizer, asked: Mapping[str, Any]
) -> None:
    """Write where the run stands; ``asked`` is what it was asked to do, compared by a resumed one.

    Raises:
        EdgepeftError: no space left or no permission; the checkpoint before is still there.
    """
    target = out / FOLDER / str(position.step)
    older = [path for path in (out / FOLDER).glob("*") if path != target]
    state = {"format": FORMAT, "asked": asked, **_plain(position)}
    with new_folder(target, force=True) as folder:
        write_tensors(_tensors(position, delta, optimizer), folder / TENSORS)
        write_json(folder / STATE, state)
    for path in older:
        shutil.rmtree(path, ignore_errors=True)


def load_checkpoint(folder: Path, delta: Delta, optimizer: torch.optim.Optimizer, asked: Mapping[str, Any]) -> Position:
    """Put parameters, optimizer and torch's global generator where they were.

    Raises:
        UsageError: the run that wrote it was asked something else; says what.
        BundleError: damaged, or of another version.
    """
    state = read_config(folder / STATE)
    if state.get("format") != FORMAT:
        raise BundleError(f"{folder} is a checkpoint of format {state.get('format')!r}; this version reads {FORMAT}.")
    _require_same(folder, state["asked"], json.loads(json.dumps(asked)))
    try:
        stored = load_file(folder / TENSORS)
    except (SafetensorError, OSError) as error:
        raise BundleError(f"{folder / TENSORS} is missing or damaged ({error}); start anew with --force.") from error
    parts: dict[str, dict[str, Tensor]] = {"delta": {}, "best": {}, "optimizer": {}}
    for name, tensor in stored.items():
        part, _, rest = name.partition(":")
        parts.setdefault(part, {})[rest] = tensor.clone()  # not a view into a file that will be removed
    delta.read(parts["delta"], str(folder))
    for name, parameter in delta.tensors().items():
        moments = {key: parts["optimizer"].get(f"{name}:{key}") for key in ("step", "exp_avg", "exp_avg_sq")}
        if all(moment is not None for moment in moments.values()):
            optimizer.state[parameter] = moments
    torch.set_rng_state(stored["rng:torch"])
    return Position(
        step=state["step"],
        best=None if state["best"] is None else (state["best"][0], state["best"][1]),
        best_step=state["best_step"],
        best_tensors=parts["best"],
        history=state["history"],
    )


def _plain(position: Position) -> dict[str, Any]:
    return {
        "step": position.step,
        "best": position.best,
        "best_step": position.best_step,
        "history": position.history,
    }


def _tensors(position: Position, delta: Delta, optimizer: torch.optim.Optimizer) -> dict[str, Tensor]:
    named = {"rng:torch": torch.get_rng_state()}
    for name, parameter in delta.tensors().items():
        named[f"delta:{name}"] = parameter.detach().contiguous()
        for key, moment in optimizer.state.get(parameter, {}).items():
            named[f"optimizer:{name}:{key}"] = moment.contiguous()
    return named | {f"best:{name}": tensor for name, tensor in position.best_tensors.items()}


def _require_same(folder: Path, before: Mapping[str, Any], now: Mapping[str, Any]) -> None:
    differing = [
        f"{name} (then {_shown(before.get(name))}, now {_shown(now.get(name))})"
        for name in sorted({*before, *now})
        if before.get(name) != now.get(name)
    ]
    if differing:
        raise UsageError(
            f"{folder} was written by a run with other arguments or data: {', '.join(differing)}. "
            "Repeat the first command with --resume, or start anew with --force."
        )


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 24 else f"{text[:20]}...{text[-1]}"
