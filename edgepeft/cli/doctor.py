"""Look for what is known to go wrong: wheels, rights, limits, threads, cache, memory. Exit 1: something will."""

from dataclasses import asdict
from typing import Annotated

from rich.text import Text
from typer import Option

from edgepeft.cli._output import plain_table, print_json, show_table, table_console
from edgepeft.common.errors import EdgepeftError

PANEL = "Look"

_STYLES = {"ok": "green", "note": "", "warning": "yellow", "bad": "bold red"}
_HOLDS = {True: "holds", False: "does not hold", None: "the host was busy: try again"}


def command(
    try_limits: Annotated[bool, Option("--try-limits", help="Run into each limit: is it exact? Takes 15 s.")] = False,
    as_json: Annotated[bool, Option("--json", help="One JSON document.")] = False,
) -> None:
    from edgepeft.device import doctor

    rows = doctor.findings()
    held = doctor.try_limits() if try_limits else []
    if as_json:
        document = {"findings": [asdict(one) for one in rows]}
        print_json({**document, "limits": [asdict(one) for one in held]} if try_limits else document)
    else:
        cells = ([Text(x.check), Text(x.status, _STYLES[x.status]), Text(x.found), Text(x.advice)] for x in rows)
        show_table("check", "", "found", "to do", rows=cells)
        if held:
            table = plain_table("limit", "by", "asked", "seen", "error", "")
            for each in held:
                error = "-" if each.error is None else f"{each.error:+.2%}"
                digits = ",.0f" if each.unit == "bytes" else ".3g"
                numbers = (f"{each.asked:{digits}} {each.unit}", f"{each.seen:{digits}} {each.unit}", error)
                table.add_row(each.what, each.backend, *numbers, _HOLDS[each.good])
            table_console().print(table)
    bad = [one.found for one in rows if one.status == "bad"]
    if bad:
        raise EdgepeftError(" ".join(bad))
