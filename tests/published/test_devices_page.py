from __future__ import annotations

import sys

import pytest

from bench.published.__main__ import app
from bench.published.devices_page import devices_page, draw_devices
from bench.published.fitting import check_predictions
from edgepeft.cli._main import main
from edgepeft.device.profiles import known_profiles, load_profile

SHIPPED = [load_profile(name) for name in known_profiles()]


@pytest.fixture(scope="module")
def found():
    return {how: check_predictions(SHIPPED, how) for how in ("family", "model")}


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


def published(*arguments):
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as ended:
        patch.setattr(sys, "argv", ["published", *map(str, arguments)])
        main(app)
    return ended.value.code


def test_the_command_writes_both_files_and_finds_the_page_up_to_date_until_it_is_edited(tmp_path, capsys):
    folder = tmp_path / "new" / "docs"
    assert published(folder) == 0
    assert capsys.readouterr().out.split() == [str(folder / "devices.md"), str(folder / "devices.png")]
    assert (folder / "devices.png").stat().st_size > 10_000
    assert published(folder, "--check") == 0
    (folder / "devices.md").write_text("edited")
    assert published(folder, "--check") == 1
    assert "make devices" in capsys.readouterr().err and (folder / "devices.md").read_text() == "edited"


def test_a_folder_that_cannot_be_made_is_a_usage_error(tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert published(tmp_path / "file" / "docs") == 2
    assert "cannot be made" in capsys.readouterr().err
