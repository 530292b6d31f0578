"""The shipped profiles, read as plain TOML: nothing in them goes without a source."""

from __future__ import annotations

import tomllib

import pytest

from edgepeft.common.resources import data_folder

FILES = sorted(data_folder("profiles").glob("*.toml"))


def figures(document):
    """(key, table) of everything that has a value."""
    for key, part in document.items():
        parts = part if isinstance(part, list) else [part]
        for table in (table for table in parts if isinstance(table, dict)):
            if "value" in table or "rows" in table:
                yield key, table
            else:
                yield from figures(table)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_figure_has_value_unit_kind_and_unless_unsourced_a_source(path):
    found = list(figures(tomllib.loads(path.read_text())))
    assert len(found) > 5
    for key, table in found:
        assert table["unit"], key
        assert table["kind"] in ("measured", "spec", "derived", "unsourced"), key
        assert (table["kind"] == "unsourced") == (not table.get("source", "").strip()), f"{path.name}: {key}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_profile_is_named_like_its_file(path):
    assert tomllib.loads(path.read_text())["name"] == path.stem


def test_the_devices_of_the_spartan_paper_and_of_a_hobbyist_are_shipped():
    shipped = {path.stem for path in FILES}
    assert {"rpi4", "iphone11"} <= shipped
    assert {"rpi5", "pi-zero-2w", "jetson-nano", "jetson-orin-nano", "snapdragon-855"} <= shipped
