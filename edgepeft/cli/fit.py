"""Predict the peak memory of answering and of fine-tuning, without running anything; exit 5 if it does not fit."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import psutil
from typer import Option

from edgepeft.cli._options import Beams, BundleFolder, MaxNewTokens, Variant, decoding_of, written
from edgepeft.cli._output import plain_table, print_json, table_console
from edgepeft.common.errors import DoesNotFit, UsageError
from edgepeft.common.progress import say

if TYPE_CHECKING:
    from edgepeft.device.profiles import Profile
    from edgepeft.tuning.fit import Fit, Need

PANEL = "Measure"

_WORKLOADS = ("infer", "finetune")


def command(
    bundle: BundleFolder,
    *,
    profile: Annotated[str, Option(help="A device, or the path of a .toml file.")],
    task: Annotated[str | None, Option(help="A task of the bundle. Default: its first.")] = None,
    template: Annotated[str | None, Option(help="Fine-tune a new task from this template of the bundle.")] = None,
    workload: Annotated[
        list[str] | None, Option(help="infer or finetune: what must fit; may repeat. Default: what the task can.")
    ] = None,
    batch: Annotated[int, Option(help="Texts of a request, and rows of a step that are computed at once.")] = 16,
    length: Annotated[int | None, Option(help="Tokens of each text. Default: 128, or the task's longest.")] = None,
    beams: Beams = None,
    max_new_tokens: MaxNewTokens = None,
    reserve: Annotated[str | None, Option(help="Memory that the system and other programs keep: 300MB.")] = None,
    set_: Variant = None,
    as_json: Annotated[bool, Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.device.profiles import load_profile, with_settings
    from edgepeft.runtime.runtime import Runtime  # noqa: F401  (what a program that answers has loaded)
    from edgepeft.tuning.fit import bundle_fit
    from edgepeft.tuning.memory import amount_of

    base = int(psutil.Process().memory_info().rss)  # what Python and its packages take
    for name in workload or ():
        if name not in _WORKLOADS:
            raise UsageError(f"--workload {name}: there are {' and '.join(_WORKLOADS)}.")
    device = with_settings(load_profile(profile), set_ or ())
    opened = Bundle(bundle)
    chosen = task or next(iter(opened.manifest.tasks), None)
    kept = 0 if reserve is None else amount_of(reserve, "--reserve")
    tuned = not workload or "finetune" in workload
    sizes: dict[str, Any] = {"batch_size": batch, "length": length, "reserve": kept, "template": template}
    decoding = decoding_of(opened, [chosen] if chosen else [], beams=beams, max_new_tokens=max_new_tokens)
    fit = bundle_fit(opened, device, chosen, base=base, finetune=tuned, decoding=decoding, **sizes)
    if "finetune" in (workload or ()) and fit.finetune is None:
        raise UsageError(f"--workload finetune: {fit.untunable}.")
    if as_json:
        print_json({"schema": "edgepeft.fit/1", "bundle": str(bundle), "profile": device.name, **asdict(fit)})
    else:
        _show(bundle, device, fit, tuned=tuned)
    misses = []
    for name, what, need in (("infer", "answering", fit.inference), ("finetune", "fine-tuning", fit.finetune)):
        if need and name in (workload or _WORKLOADS) and not need.fits:
            most = f"a batch of {need.largest_batch} fits" if need.largest_batch else "no batch fits"
            misses.append(f"{what} {fit.batch_size} x {fit.length} tokens takes about {_mb(need.peak_bytes)}, {most}")
    if misses:
        raise DoesNotFit(f"{'; '.join(misses)}; {_mb(fit.allowed_bytes)} are there on {device.name}.")


def _show(bundle: Path, device: Profile, fit: Fit, *, tuned: bool) -> None:
    what = "the bare backbone" if fit.task is None else f"task {fit.task}"
    title = f"{what} of {bundle} on {device.title}: {_mb(fit.allowed_bytes)} of memory"
    table = plain_table("", numbers=("predicted",), title=title)
    sizes = f"{fit.batch_size} x {fit.length} tokens"
    answers = f"{sizes}{written(fit.decoding)}"
    inference = fit.inference
    table.add_row(f"answering {answers}, peak", _verdict(inference))
    for part, size in inference.parts.items():
        table.add_row(f"  {part}", _mb(size))
    most = "any, in several passes" if inference.at_most else f"{inference.largest_batch:,}"
    table.add_row("largest batch for answering", most)
    if fit.task is not None:
        table.add_row(f"tasks like it at once, {_mb(inference.task_bytes, 2)} each", f"{inference.tasks:,}")
    if fit.finetune is not None:
        table.add_row(f"fine-tuning, {sizes} at once, peak", _verdict(fit.finetune))
        more = " or more" if fit.finetune.at_most else ""
        table.add_row("largest number of rows at once", f"{fit.finetune.largest_batch:,}{more}")
    for name, size in fit.disk.items():
        table.add_row(f"disk: {name}", _mb(size))
    table_console().print(table)
    if fit.finetune is None and tuned:
        say(f"note: fine-tuning is not in the table: {fit.untunable}")
    for what, (each, tokens) in (("answered", fit.read_as), ("learnt from", fit.taught_as or (1, 0))):
        if each > 1 and (what == "answered" or fit.taught_as != fit.read_as):
            say(f"note: each text that is {what} is read as {each} rows of {tokens} tokens.")
    kept = device.memory_bytes - fit.allowed_bytes
    system = f"{_mb(kept)} are kept for them" if kept else "not counted; --reserve leaves it out"
    say(f"note: what the system and other programs take: {system}.")


def _verdict(need: Need) -> str:
    return f"{_mb(need.peak_bytes)}, {'fits' if need.fits else 'does not fit'}"


def _mb(n_bytes: int, digits: int = 0) -> str:
    return f"{n_bytes / 1e6:,.{digits}f} MB"
