"""``edgepeft profiles``: the devices there are, or all figures of one with their sources."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from edgepeft.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from edgepeft.profiles.schema import Figure, Latency, Profile

__all__ = ["command"]

_NEW = "new"


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
    json: Annotated[bool, typer.Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    """List the device profiles, show every figure of one with its source, or write one: new NAME --measure."""
    from edgepeft.profiles.loader import known_profiles, load_profile

    if name == _NEW:
        _new(new_name, out, measure=measure, force=force, as_json=json)
        return
    if new_name is not None or measure or out is not None or force:
        raise UsageError("a profile is written with: edgepeft profiles new NAME --measure.")
    if name is not None:
        profile = load_profile(name)
        _print_json(_document(profile)) if json else _show(profile)
        return
    profiles = [load_profile(known) for known in known_profiles()]
    if json:
        _print_json({"profiles": [_summary(profile) for profile in profiles]})
    else:
        _list(profiles)


def _new(name: str | None, out: Path | None, *, measure: bool, force: bool, as_json: bool) -> None:
    """Measure this board and write its profile."""
    import re

    from edgepeft.bench.new_profile import measured_profile
    from edgepeft.cli._output import log
    from edgepeft.profiles.loader import load_profile
    from edgepeft.profiles.write import toml_of
    from edgepeft.resources import write_atomically

    if name is None or not measure:
        raise UsageError("give the new profile's name and --measure: edgepeft profiles new my-board --measure.")
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise UsageError(f"a profile's name is small letters, digits, dots and dashes, got {name!r}.")
    target = out or Path(f"{name}.toml")
    if target.suffix != ".toml":
        raise UsageError(f"--out {target}: a profile is a .toml file.")
    if target.exists() and not force:
        raise UsageError(f"{target} exists already. Give --force to replace it, or another --out.")
    console = log()
    with console.status("measuring") as status:
        document, notes = measured_profile(
            name, progress=lambda what, done, total: status.update(f"measuring: {what} ({done + 1} of {total})")
        )
    comment = "Measured on the board itself. How to read profiles: profiles/README.md in edgepeft's repository."
    write_atomically(target, toml_of(document, comment).encode())
    for note in notes:
        console.print(f"note: {note}", markup=False)
    if as_json:
        _print_json(_document(load_profile(target)))
    else:
        typer.echo(target)


def _summary(profile: Profile) -> dict[str, object]:
    return {
        "name": profile.name,
        "title": profile.title,
        "cores": profile.cores.value,
        "memory_bytes": profile.memory_bytes,
        "isa": list(profile.isa.value),
    }


def _document(profile: Profile) -> dict[str, object]:
    return {**profile.model_dump(mode="json"), "memory_bytes": profile.memory_bytes}


def _print_json(document: object) -> None:
    from json import dumps

    typer.echo(dumps(document, indent=2, ensure_ascii=False))


def _list(profiles: list[Profile]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("name", "device", "cores", "memory", "instruction set")
    for profile in profiles:
        memory = f"{profile.memory.value:g} {profile.memory.unit}"
        isa = " ".join(profile.isa.value)
        table.add_row(profile.name, profile.title, str(profile.cores.value), memory, isa)
    Console().print(table)


def _show(profile: Profile) -> None:
    from rich.console import Console
    from rich.markup import escape

    console = Console()
    console.print(f"[bold]{escape(profile.name)}[/bold]  {escape(profile.title)}")
    if profile.about:
        console.print(escape(profile.about.strip()))
    for table in (_figures(profile), _latencies(profile)):
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


def _source(part: Figure | Latency) -> str:
    return "; ".join(text for text in (part.source, part.note) if text)
