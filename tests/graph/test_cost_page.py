"""docs/cost.md and the table that counts say the same."""

import re
from pathlib import Path

from edgepeft.graph.cost import PER_ELEMENT

PAGE = (Path(__file__).parents[2] / "docs" / "cost.md").read_text()


def stated():
    """Operator -> FLOPs for each number."""
    found = {}
    for line in PAGE.split("## Everything else")[1].split("##")[0].splitlines():
        row = re.match(r"\| ([A-Z].*?) \| (\d+)", line)
        if row:
            found |= dict.fromkeys((name.strip(" .") for name in row[1].split(",")), int(row[2]))
    return found


def test_every_operator_of_the_page_counts_as_the_page_says():
    found = {name: count for name, count in stated().items() if name in PER_ELEMENT}
    assert len(found) > 45 and all(PER_ELEMENT[name] == count for name, count in found.items())


def test_every_operator_that_counts_is_on_the_page():
    assert {name for name, count in PER_ELEMENT.items() if count} <= set(stated())
