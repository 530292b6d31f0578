"""List the device profiles, show every figure of one with its source, or write one: new NAME --measure."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Column, Table
from typer import Argument, Option

from edgepeft.cli._options import Variant
from edgepeft.cli._output import print_json
from edgepeft.common.atomic import write_atomically
from edgepeft.common.errors import UsageError
from edgepeft.common.progress import messages

if TYPE_CHECKING:
    from edgepeft.device.profiles import Calibration, Figure, Latency, Profile

PANEL = "Look"

_NEW = "new"
_GRADES = (
    "What is known of an encoder's speed: A, ONNX Runtime was measured; B, another runtime, in fp32; C, in another "
    "precision; D, other kinds of graphs only; E, nothing."
)


def command(
    name: Annotated[str | None, Argument(help="A profile's name, or a .toml file's path.", show_default=False)] = None,
    new_name: Annotated[str | None, Argument(metavar="[NEW]", help="After `new`: the new profile's name.")] = None,
    measure: Annotated[bool, Option("--measure", help="With `new NAME`: measure the board that this runs on.")] = False,
    out: Annotated[Path | None, Option(help="With `new NAME`: the file. Default: NAME.toml.")] = None,
    force: Annotated[bool, Option("--force", help="With `new NAME`: replace the file.")] = False,
    set_: Variant = None,
    json: Annotated[bool, Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    from edgepeft.device.profiles import known_profiles, load_profile, with_settings

    if name == _NEW:
        if set_:
            raise UsageError("profiles new NAME --measure takes --out, --force and --json only.")
        written = _write(new_name, out, measure=measure, force=force)
        print_json(_document(load_profile(written))) if json else typer.echo(written)
        return
    if new_name is not None or measure or out is not None or force:
        raise UsageError("a profile is written with: edgepeft profiles new NAME --measure.")
    if set_ and name is None:
        raise UsageError("--set makes a variant of one device; name it: edgepeft profiles rpi4 --set memory=2GB.")
    if name is not None:
        profile = with_settings(load_profile(name), set_ or ())
        print_json(_document(profile)) if json else _show(profile)
        return
    profiles = [load_profile(known) for known in known_profiles()]
    if json:
        facts = [
            {
                "name": profile.name,
                "title": profile.title,
                "cores": profile.cores.value,
                "memory_bytes": profile.memory_bytes,
                "isa": list(profile.isa.value),
                "grade": profile.grade,
            }
            for profile in profiles
        ]
        print_json({"profiles": facts})
        return
    table = Table("name", "device", "cores", "memory", "grade", "instruction set")
    for profile in profiles:
        memory, isa = f"{profile.memory.value:g} {profile.memory.unit}", " ".join(profile.isa.value)
        table.add_row(profile.name, profile.title, str(profile.cores.value), memory, profile.grade, isa)
    console = Console()
    console.print(table)
    console.print(_GRADES)


def _write(name: str | None, out: Path | None, *, measure: bool, force: bool) -> Path:
    from edgepeft.bench.board_profile import measured_profile
    from edgepeft.device.profiles import toml_of

    if name is None or not measure:
        raise UsageError("give the new profile's name and --measure: edgepeft profiles new my-board --measure.")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise UsageError(f"a profile's name is small letters, digits, dots and dashes, got {name!r}.")
    target = out or Path(f"{name}.toml")
    if target.suffix != ".toml":
        raise UsageError(f"--out {target}: a profile is a .toml file.")
    if target.exists() and not force:
        raise UsageError(f"{target} exists already. Give --force to replace it, or another --out.")
    console = messages()
    with console.status("measuring") as status:
        document, notes = measured_profile(
            name, progress=lambda what, done, total: status.update(f"measuring: {what} ({done + 1} of {total})")
        )
    comment = "Measured on the board itself. How to read profiles: profiles/README.md in edgepeft's repository."
    write_atomically(target, toml_of(document, comment).encode())
    for note in notes:
        console.print(f"note: {note}", markup=False)
    return target


def _document(profile: Profile) -> dict[str, object]:
    return {**profile.model_dump(mode="json"), "memory_bytes": profile.memory_bytes, "grade": profile.grade}


def _show(profile: Profile) -> None:
    console = Console()
    console.print(f"[bold]{escape(profile.name)}[/bold]  {escape(profile.title)}")
    if profile.about:
        console.print(escape(profile.about.strip()))
    console.print(f"grade {profile.grade}. {_GRADES}")
    if profile.reference is not None and profile.reference_seconds is not None:
        speed = profile.reference.flops / profile.reference_seconds / 1e9
        which = f"{profile.reference.model}, {profile.reference.runtime} {profile.reference.precision}"
        console.print(escape(f"bench --mode calibrated runs: {which}, {speed:.3g} GFLOP/s there"))
    figures = _folded("figure", "value", "kind")
    isa = f"{' '.join(profile.isa.value)}{''.join(f' no:{flag}' for flag in profile.isa.absent)}"
    parts = {"cores": profile.cores, "memory": profile.memory, "isa": profile.isa, **profile.figures}
    for key, figure in parts.items():
        value = isa if figure is profile.isa else f"{figure.value} {figure.unit}"
        figures.add_row(escape(figure.title or key), escape(value), figure.kind, escape(_source(figure)))
    latencies = _folded("latency of", "runtime", "threads", "ms", "kind", title="published latencies, batch 1")
    for row in profile.latencies:
        runtime = f"{row.runtime} {row.precision}".strip()
        threads = str(row.threads or "-")
        latencies.add_row(escape(row.model), escape(runtime), threads, f"{row.value:g}", row.kind, escape(_source(row)))
    headers = ("rate of", "runtime", "rate", "latencies behind it", "kind")
    rates = _folded(*headers, title="what predictions are made from")
    for one in profile.calibrations:
        runtime = f"{one.runtime} {one.precision}" + (f", {one.threads} threads" if one.threads else "")
        rate = f"{one.value:g} {one.unit}" + (f" + {one.overhead_ms:g} ms" if one.overhead_ms else "")
        behind = f"{one.samples}" + ("" if one.error_percent is None else f", off by {one.error_percent:g} %")
        rates.add_row(one.operators.value, escape(runtime), rate, behind, one.kind, escape(_source(one)))
    for table in (figures, latencies, rates):
        if table.row_count:
            console.print(table)


def _folded(*headers: str, title: str | None = None) -> Table:
    return Table(*(Column(header, overflow="fold") for header in (*headers, "source and notes")), title=title)


def _source(part: Figure | Latency | Calibration) -> str:
    return "; ".join(text for text in (part.source, part.note) if text)
