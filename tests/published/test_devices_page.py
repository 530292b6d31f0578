from __future__ import annotations

import json
from pathlib import Path

import pytest
from verbs import edgepeft

from bench.published.devices_page import devices_page, draw_devices
from bench.published.validation import check
from edgepeft.profiles.loader import known_profiles, load_profile

DOCS = Path(__file__).parents[2] / "docs"
SHIPPED = [load_profile(name) for name in known_profiles()]


@pytest.fixture(scope="module")
def found():
    return {how: check(SHIPPED, how) for how in ("family", "model")}


def test_the_page_in_docs_is_what_the_command_writes(found):
    assert (DOCS / "devices.md").read_text() == devices_page(SHIPPED, found)
    assert (DOCS / "devices.png").stat().st_size > 10_000


def test_the_page_has_a_line_for_every_latency_of_every_profile(found):
    page = devices_page(SHIPPED, found)
    for profile in SHIPPED:
        for row in profile.latencies:
            if row.graph:
                assert f"| {profile.name} | {row.model.partition(' (')[0]} | {row.runtime} {row.precision}" in page


def test_a_picture_is_drawn_with_both_axes_logarithmic(found, tmp_path):
    draw_devices(found, tmp_path / "devices.svg")
    text = (tmp_path / "devices.svg").read_text()
    assert "measured, ms" in text and "predicted, ms" in text and "rpi4, uncalibrated" in text and "within 25 %" in text


def test_the_verb_writes_both_files(tmp_path):
    done = edgepeft("profiles", "--validate", tmp_path / "new" / "docs")
    assert done.returncode == 0
    assert [Path(line).name for line in done.stdout.split()] == ["devices.md", "devices.png"]
    assert all(Path(line).exists() for line in done.stdout.split())


def test_the_verb_gives_every_error_as_json(tmp_path):
    document = json.loads(edgepeft("profiles", "pi-zero-2w", "--validate", tmp_path, "--json").stdout)
    assert [one["error"] for one in document["family"]] == [None, None]
    assert all(abs(one["error"]) < 0.25 for one in document["model"])


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path):
    (tmp_path / "file").write_text("")
    done = edgepeft("profiles", "--validate", tmp_path / "file" / "docs")
    assert done.returncode == 2 and "cannot be made" in done.stderr
