"""List the PE methods, or show one with its equation, paper, fields and defaults."""

from typing import Annotated

from rich.markup import escape
from rich.table import Column
from typer import Argument, Option

from edgepeft.backbones.config import read_config
from edgepeft.cli._output import plain_table, print_json, table_console
from edgepeft.common.errors import look_up
from edgepeft.common.resources import package_data

PANEL = "Look"


def command(
    name: Annotated[str | None, Argument(help="A method's name.", show_default=False)] = None,
    as_json: Annotated[bool, Option("--json", help="One JSON document instead of tables.")] = False,
) -> None:
    document = read_config(package_data("methods.json"))
    entries = {entry["name"]: entry for entry in document["methods"]}
    if name is None:
        if as_json:
            print_json(document)
            return
        counted_on = next(iter(document["methods"][0]["parameters"]))
        numbers = (f"trained on {counted_on}", "%", "lr")
        table = plain_table("name", Column("what it computes", overflow="fold"), numbers=numbers)
        for entry in document["methods"]:
            count, share = entry["parameters"][counted_on], entry["percent"][counted_on]
            cells = (f"{count:,}", f"{share:.3g}", f"{entry['learning_rate']:g}")
            table.add_row(entry["name"], escape(entry["equation"]), *cells)
        table_console().print(table)
        return
    entry = look_up("PE method", name, entries)
    if as_json:
        print_json(entry)
        return
    console = table_console()
    console.print(f"[bold]{escape(entry['name'])}[/bold]  {escape(entry['title'])}\n")
    console.print(entry["about"], markup=False, soft_wrap=True)
    console.print()
    console.print(f"paper          {escape(entry['paper'])}")
    console.print(f"learning rate  {entry['learning_rate']:g}  {escape(entry['learning_rate_source'])}")
    for backbone, count in entry["parameters"].items():
        console.print(f"trained        {count:,} parameters on {backbone}, {entry['percent'][backbone]:.3g} % of it")
    headers = ("--set", "type", "default", "what it is")
    table = plain_table(*(Column(header, overflow="fold") for header in headers))
    for field in entry["fields"]:
        value = field["default"]  # as one would write it after ``--set name=``
        default = ",".join(map(str, value)) if isinstance(value, list) else str(value)
        default = default.lower() if isinstance(value, bool) else default
        table.add_row(*map(escape, (field["name"], field["type"], default, field["doc"])))
    if table.row_count:
        console.print(table)
