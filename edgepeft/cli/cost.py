"""Count what a run costs; no weight is read. docs/cost.md says how each operator counts."""

from typing import Annotated, Any

from rich.table import Column
from rich.text import Text
from typer import Option

from edgepeft.cli._options import Beams, BundleFolder, MaxNewTokens, decoding_of, written
from edgepeft.cli._output import plain_table, print_json, table_console
from edgepeft.common.progress import say

PANEL = "Measure"

_NUMBERS = ("MFLOP", "% of all", "read, MB", "written, MB", "weights, MB")


def command(
    bundle: BundleFolder,
    *,
    task: Annotated[str | None, Option(help="A task of the bundle. Default: the bare backbone.")] = None,
    length: Annotated[int | None, Option(help="Tokens of each text, none of them padding. Default: 128.")] = None,
    batch: Annotated[int, Option(help="Texts in a run.")] = 1,
    beams: Beams = None,
    max_new_tokens: MaxNewTokens = None,
    nodes: Annotated[bool, Option("--nodes", help="A row for each node instead of each operator.")] = False,
    as_json: Annotated[bool, Option("--json", help="One JSON document, every node in it.")] = False,
) -> None:
    from edgepeft.bundle.bundle import Bundle
    from edgepeft.deploy.cost import bundle_cost

    opened = Bundle(bundle)
    decoding = decoding_of(opened, [task] if task else [], beams=beams, max_new_tokens=max_new_tokens)
    cost = bundle_cost(opened, task, batch, length, decoding)
    if as_json:
        document = {
            "schema": "edgepeft.cost/1",
            "bundle": str(bundle),
            "task": cost.task,
            "batch_size": cost.batch_size,
            "sequence_length": cost.length,
            **({} if cost.read_as is None else {"token_rows": cost.read_as[0], "tokens_each": cost.read_as[1]}),
            **({} if cost.decoding is None else {"tokens": cost.decoding.max_new_tokens, "beams": cost.decoding.beams}),
            "precision": cost.precision,
            "flops": cost.flops,
            "product_flops": cost.product_flops,
            "flops_per_instance": cost.flops / cost.batch_size,
            "totals": cost.totals(),
            "by_operator": cost.by_operator(),
            "nodes": [_node(work) for work in cost.works],
            "not_counted": list(cost.unknown),
        }
        print_json(document)
    else:
        what = "the bare backbone" if cost.task is None else f"task {cost.task}"
        title = (
            f"{what} of {bundle}, {cost.batch_size} x {cost.length} tokens{written(cost.decoding)}, {cost.precision}"
        )
        first = ("node", "operator") if nodes else ("operator", "class", Column("nodes", justify="right"))
        if nodes:
            shown = [work for work in cost.works if work.flops or work.n_bytes]
            rows = [(Text(work.name), work.op, *_numbers(_node(work), cost.flops)) for work in shown]
        else:
            rows = [(row["op"], row["class"], str(row["n"]), *_numbers(row, cost.flops)) for row in cost.by_operator()]
        table = plain_table(*first, rows=rows, numbers=_NUMBERS, title=title)
        table.add_section()
        table.add_row("all", *[""] * (len(first) - 1), *_numbers(cost.totals(), cost.flops))
        table_console().print(table)
    if cost.read_as is not None:
        say("note: each text is read as {} rows of {} tokens.".format(*cost.read_as))
    if cost.unknown:
        say(f"note: the FLOPs of {', '.join(cost.unknown)} are not counted; docs/cost.md has no entry for them.")


def _node(work: Any) -> dict[str, Any]:
    sizes = {name: getattr(work, name) for name in ("flops", "read_bytes", "written_bytes", "weight_bytes")}
    return {"name": work.name, "op": work.op, "class": work.kind.value, **sizes}


def _numbers(row: dict[str, Any], flops: int) -> list[str]:
    share = f"{100 * row['flops'] / flops:.2f}" if flops else "-"
    sizes = (f"{row[name] / 1e6:,.2f}" for name in ("read_bytes", "written_bytes", "weight_bytes"))
    return [f"{row['flops'] / 1e6:,.2f}", share, *sizes]
