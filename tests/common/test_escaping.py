"""What comes from a bundle or from data decides no more of a terminal than the letters in it."""

from io import StringIO

import pytest
from rich.text import Text

from edgepeft.bundle.manifest import Manifest, model_card
from edgepeft.cli import _output
from edgepeft.common.escaping import printable

# Colours, the title, the clipboard (OSC 52), a C1 introducer, a bell, text that runs backwards, a line end of its own.
HOSTILE = [
    "\x1b[31mred",
    "\x1b]0;title\x07",
    "\x1b]52;c;cm0=\x07",
    "\x9b2J",
    "\a",
    "\u202egnp.exe",
    "\u2028",
    "\r",
    "\x7f",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_nothing_but_letters_reaches_a_terminal(text):
    assert printable(text).isprintable()
    assert printable(text).isascii()  # all of these are escaped, none is dropped
    assert len(printable(text)) > len(text)


def test_what_people_write_stays_as_it_is():
    text = "Größe\u00a0mm,\u3000全角\t🙂\nzwei"
    assert printable(text) == text
    assert printable(text, keep="") == text.replace("\t", "\\t").replace("\n", "\\n")


@pytest.mark.parametrize("text", HOSTILE)
@pytest.mark.parametrize("width", [8, 120])
def test_tables_and_messages_show_names_without_control_characters(text, width):
    console, shown = _output.table_console(), StringIO()
    console.file, console.width = shown, width
    table = _output.plain_table("label", title=f"of {text}")
    table.add_row(text)
    table.add_row(Text(text))
    console.print(table, f"message {text}", markup=False)
    assert all(line.isprintable() for line in shown.getvalue().split("\n"))
    assert "message" in shown.getvalue()
    if width == 120:  # whole, wherever it stands; rich itself drops a bell and a carriage return
        assert shown.getvalue().count(printable(text)) == (1 if {"\a", "\r"} & {*text} else 4)


def test_styles_are_still_richs(monkeypatch):
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1")
    console, shown = _output.table_console(), StringIO()
    console.file = shown
    console.print(Text("red\x1b[2J", style="red"))
    assert shown.getvalue() == "\x1b[31mred\\x1b[2J\x1b[0m\n"


def test_nothing_of_a_manifest_from_elsewhere_becomes_markup_or_front_matter_of_the_bundles_page(bundle):
    manifest = Manifest.read(bundle)
    hostile = "a/b\nlicense: mit\n<script>|*x*"
    backbone = manifest.backbone.model_copy(update={"source": hostile, "model_type": hostile})
    odd = {"method": hostile, "metrics": {"metric": hostile, "test": 1, "baselines": {hostile: {"test": 0}}}}
    tasks = {name: entry.model_copy(update=odd) for name, entry in manifest.tasks.items()}
    page = model_card(
        manifest.model_copy(update={"backbone": backbone, "tasks": tasks, "versions": {hostile: hostile}})
    )
    assert "\nlicense" not in page
    assert "base_model" not in page
    assert "<script>" not in page.replace("\\<", "")
    rows = [line for line in page.splitlines() if line.startswith(("| mood", "| pair", "| score"))]
    assert [row.replace("\\|", "").count("|") for row in rows] == [8, 8, 8]
