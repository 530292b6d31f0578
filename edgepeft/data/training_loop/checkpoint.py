"""A training loop's state on disk: one safetensors file, replaced atomically, with the plain facts in its metadata.

``<folder>/<step>.safetensors``.  A file is whole or not there, and older ones go only when the new one is on the
disk, so whenever the power goes, the newest file is a whole checkpoint.  On a board the folder is ``.tune/<task>/`` in
the bundle, held by one run at a time.

A loop has diverged when its losses stay far above where they began, and above what knowing nothing costs.  The median
of the last steps decides, so that no single batch of outliers does.
"""

import contextlib
import dataclasses
import json
import math
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from statistics import median
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from edgepeft.backbones.checkpoint import check_header
from edgepeft.common.atomic import replacing
from edgepeft.common.errors import BundleError, EdgepeftError, UsageError
from edgepeft.common.own_folder import LOCK_FILE, held_folder
from edgepeft.data.training_loop.engine import Arrays

FORMAT = "edgepeft.course/1"
_SUFFIX = ".safetensors"
FIRST = 5  # steps whose median loss is where a run began: the rate is still warming up
RECENT = 20  # steps whose median is where it stands
FAR = 3.0  # times: of two labels, 2.1 and more


@dataclasses.dataclass
class Position:
    """Where a training loop stands."""

    step: int = 0  # steps done
    best: tuple[float, float] | None = None  # score and minus the loss of the best evaluation
    best_step: int = 0
    history: list[dict[str, float]] = dataclasses.field(default_factory=list)
    best_tensors: Arrays = dataclasses.field(default_factory=dict)
    first_losses: list[float] = dataclasses.field(default_factory=list)
    recent_losses: list[float] = dataclasses.field(default_factory=list)

    def record(self, loss: float) -> None:
        """Keep what ``risen`` needs; it is in the checkpoint, so a resumed run ends where an uninterrupted one does."""
        if len(self.first_losses) < FIRST:
            self.first_losses.append(loss)
        self.recent_losses = [*self.recent_losses, loss][-RECENT:]

    def most_loss(self, ignorant: float) -> float:
        """Return the loss that is far above the start."""
        return FAR * max(ignorant, median(self.first_losses or [math.inf]))

    def risen(self, ignorant: float) -> str | None:
        """Say how far the losses have risen above their start, if they have."""
        now = median(self.recent_losses or [0.0])
        if len(self.recent_losses) < RECENT or now <= self.most_loss(ignorant):
            return None
        return f"the loss rose from {median(self.first_losses):.3g} to {now:.3g} (median of {RECENT} steps)"


_PLAIN = ("step", "best", "best_step", "history", "first_losses", "recent_losses")


def latest(folder: Path) -> Path | None:
    """Return the newest checkpoint."""
    steps = (path for path in folder.glob(f"*{_SUFFIX}") if path.stem.isdigit())
    return max(steps, key=lambda path: int(path.stem), default=None)


def save_checkpoint(folder: Path, position: Position, state: Arrays, asked: Mapping[str, Any]) -> None:
    """Write where the run stands; ``asked`` is what makes the run what it is, compared by a resumed one."""
    target = folder / f"{position.step}{_SUFFIX}"
    older = [path for path in folder.glob(f"*{_SUFFIX}") if path != target]
    parts = {"state": state, "best": position.best_tensors}
    tensors = {f"{part}:{name}": tensor for part, named in parts.items() for name, tensor in named.items()}
    facts = {"asked": asked, **{name: getattr(position, name) for name in _PLAIN}}
    with replacing(target) as temporary:
        save_file(tensors, temporary, metadata={"format": FORMAT, "facts": json.dumps(facts)})
    for path in older:
        path.unlink(missing_ok=True)


def load_checkpoint(path: Path, asked: Mapping[str, Any]) -> tuple[Position, Arrays]:
    """Return the position, and the engine's state."""
    parts: dict[str, Arrays] = {"state": {}, "best": {}}
    with _opened(path, "start anew with --force") as (file, facts):
        before, now = facts["asked"], json.loads(json.dumps(asked))
        # An option that an earlier version lacked was at its default, which is nothing or no.
        differing = [
            f"{name} (then {_shown(before.get(name))}, now {_shown(now.get(name))})"
            for name in sorted({*before, *now})
            if (before.get(name) or None) != (now.get(name) or None)
        ]
        if differing:
            raise UsageError(
                f"{path} was written by a run with other arguments or data: {', '.join(differing)}. "
                "Repeat the first command with --resume, or start anew with --force."
            )
        for name in file.keys():  # noqa: SIM118
            part, _, rest = name.partition(":")
            parts[part][rest] = file.get_tensor(name).copy()
        position = Position(**{name: facts[name] for name in _PLAIN}, best_tensors=parts["best"])
    position.best = position.best and (position.best[0], position.best[1])  # JSON has lists only
    return position, parts["state"]


def best_score(path: Path) -> float | None:
    """Return the best score on the evaluation rows up to a checkpoint; None before the first evaluation."""
    with _opened(path, "remove it, and the run starts anew") as (_, facts):
        return facts["best"] and float(facts["best"][0])


@contextlib.contextmanager
def _opened(path: Path, remedy: str) -> Iterator[tuple[Any, dict[str, Any]]]:
    """Open a checkpoint's tensors and plain facts for the block."""
    try:
        check_header(path, path)
        with safe_open(path, "np") as file:
            metadata = file.metadata() or {}
            if (found := metadata.get("format")) != FORMAT:
                raise BundleError(
                    f"{path} is a checkpoint of format {found!r}; this version reads {FORMAT}. Start anew with --force."
                )
            yield file, json.loads(metadata["facts"])
    except (SafetensorError, OSError, KeyError, TypeError, ValueError) as error:
        raise BundleError(f"{path} is damaged ({error}); {remedy}.") from error


def _shown(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 24 else f"{text[:20]}...{text[-1]}"


class Diverged(EdgepeftError):
    """The loss or a gradient is not finite, or the losses are far above their start."""


_FOLDER = ".tune"


@contextlib.contextmanager
def claim(bundle: Path, task: str, wait_s: float = 0) -> Iterator[Path]:
    """Hold the task for one run; yields the folder of its checkpoints.  A dead process holds nothing."""
    waited = f" (waited {wait_s:g} s for it)" if wait_s else ""
    busy = f"task {task} of {bundle} is being tuned by another process{waited}; wait for it, or tune another task."
    with contextlib.ExitStack() as held:
        try:
            folder = held.enter_context(held_folder(bundle, _FOLDER, task, busy=busy, wait_s=wait_s))
        except OSError as error:
            raise EdgepeftError(
                f"{bundle} cannot be written ({error.strerror}); tuning keeps its checkpoints and its result there. "
                "Copy the bundle to a place that can be written."
            ) from error
        try:
            yield folder
        finally:
            if latest(folder) is None:
                discard(folder)


def discard(folder: Path) -> None:
    """Remove every checkpoint of a run that is over."""
    for path in folder.iterdir():
        if path.name == LOCK_FILE:
            continue
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)
