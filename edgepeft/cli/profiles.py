"""``edgepeft profiles``: the devices there are, or all figures of one with their sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepeft.cli._output import print_json
from edgepeft.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from edgepeft.profiles.schema import Calibration, Figure, Latency, Profile

__all__ = ["command"]

_NEW = "new"
_GRADES = (
    "What is known of an encoder's speed: A, ONNX Runtime was measured; B, another runtime, in fp32; C, in another "
    "precision; D, other kinds of graphs only; E, nothing."
)


def command(
    name: Annotated[
        str | None, typer.Argument(help="A profile's name, or the path of a .toml file.", show_default=False)
    ] = None,
    new_name: Annotated[
        str | None, typer.Argument(metavar="[NEW]", help="After `new`: the name of the profile to write.")
    ] = None,
    measure: Annotated[
        bool, typer.Option("--measure", help="With `new NAME`: measure the board that this runs on.")
    ] = False,
    out: Annotated[Path | None, typer.Option(help="With `new NAME`: the file. Default: NAME.toml.")] = None,
    force: Annotated[bool, typer.Option("--force", help="With `new NAME`: replace the file.")] = False,
    set_: Annotated[
        list[str] | None, typer.Option("--set", help="A variant of the device: memory=2GB.", metavar="NAME=VALUE")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """List the device profiles, show every figure of one with its source, or write one: new NAME --measure."""
    from edgepeft.cli._new_profile import write_profile
    from edgepeft.profiles.loader import known_profiles, load_profile
    from edgepeft.profiles.variants import with_settings

    if name == _NEW:
        if set_:
            raise UsageError("profiles new NAME --measure takes --out, --force and --json only.")
        written = write_profile(new_name, out, measure=measure, force=force)
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
        print_json({"profiles": [_summary(profile) for profile in profiles]})
    else:
        _list(profiles)


def _summary(profile: Profile) -> dict[str, object]:
    return {
        "name": profile.name,
        "title": profile.title,
        "cores": profile.cores.value,
        "memory_bytes": profile.memory_bytes,
        "isa": list(profile.isa.value),
        "grade": profile.grade,
    }


def _document(profile: Profile) -> dict[str, object]:
    return {**profile.model_dump(mode="json"), "memory_bytes": profile.memory_bytes, "grade": profile.grade}


def _list(profiles: list[Profile]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "device", "cores", "memory", "grade", "instruction set")
    for profile in profiles:
        memory = f"{profile.memory.value:g} {profile.memory.unit}"
        isa = " ".join(profile.isa.value)
        table.add_row(profile.name, profile.title, str(profile.cores.value), memory, profile.grade, isa)
    console = Console()
    console.print(table)
    console.print(_GRADES)


def _show(profile: Profile) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(f"[bold]{escape(profile.name)}[/bold]  {escape(profile.title)}")
    if profile.about:
        console.print(escape(profile.about.strip()))
    console.print(f"grade {profile.grade}. {_GRADES}")
    if profile.reference is not None and profile.reference_seconds is not None:
        rate = profile.reference.flops / profile.reference_seconds / 1e9
        which = f"{profile.reference.model}, {profile.reference.runtime} {profile.reference.precision}"
        console.print(escape(f"bench --mode calibrated runs: {which}, {rate:.3g} GFLOP/s there"))
    for table in (_figures(profile), _latencies(profile), _calibrations(profile)):
        if table.row_count:
            console.print(table)


def _figures(profile: Profile) -> Table:
    from rich.markup import escape
    from rich.table import Column, Table

    headers = ("figure", "value", "kind", "source and notes")
    table = Table(*(Column(header, overflow="fold") for header in headers))
    isa = f"{' '.join(profile.isa.value)}{''.join(f' no:{flag}' for flag in profile.isa.absent)}"
    parts = {"cores": profile.cores, "memory": profile.memory, "isa": profile.isa, **profile.figures}
    for key, figure in parts.items():
        value = isa if figure is profile.isa else f"{figure.value} {figure.unit}"
        table.add_row(escape(figure.title or key), escape(value), figure.kind, escape(_source(figure)))
    return table


def _latencies(profile: Profile) -> Table:
    from rich.markup import escape
    from rich.table import Column, Table

    headers = ("latency of", "runtime", "threads", "ms", "kind", "source and notes")
    columns = (Column(header, overflow="fold") for header in headers)
    table = Table(*columns, title="published latencies, batch 1")
    for row in profile.latencies:
        runtime = f"{row.runtime} {row.precision}".strip()
        threads = str(row.threads or "-")
        table.add_row(escape(row.model), escape(runtime), threads, f"{row.value:g}", row.kind, escape(_source(row)))
    return table


def _calibrations(profile: Profile) -> Table:
    from rich.markup import escape
    from rich.table import Column, Table

    headers = ("rate of", "runtime", "rate", "latencies behind it", "kind", "source and notes")
    table = Table(*(Column(header, overflow="fold") for header in headers), title="what predictions are made from")
    for row in profile.calibrations:
        runtime = f"{row.runtime} {row.precision}" + (f", {row.threads} threads" if row.threads else "")
        rate = f"{row.value:g} {row.unit}" + (f" + {row.overhead_ms:g} ms" if row.overhead_ms else "")
        behind = f"{row.samples}" + ("" if row.error_percent is None else f", off by {row.error_percent:g} %")
        table.add_row(row.operators.value, escape(runtime), rate, behind, row.kind, escape(_source(row)))
    return table


def _source(part: Figure | Latency | Calibration) -> str:
    return "; ".join(text for text in (part.source, part.note) if text)
