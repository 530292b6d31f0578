"""The documentation's site: README is its first page, and a link that leads nowhere is found."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path

import pytest

build = pytest.importorskip("mkdocs.commands.build", reason="pip install edgepeft[dev]").build
from mkdocs.config import load_config

ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture
def built(tmp_path, caplog):
    """Builds a README, with a guide, a folder of results and a script beside it; the first page and the warnings."""

    def page(readme, **options):
        (tmp_path / "docs" / "results").mkdir(parents=True)
        shutil.copyfile(ROOT / "docs" / "site_hooks.py", tmp_path / "docs" / "site_hooks.py")
        (tmp_path / "docs" / "guide.md").write_text("# Guide\n\n[Home](../README.md), [script](../run.sh)\n")
        (tmp_path / "run.sh").touch()
        (tmp_path / "README.md").write_text(readme)
        (tmp_path / "mkdocs.yml").write_text("site_name: s\nuse_directory_urls: false\nhooks: [docs/site_hooks.py]\n")
        config = load_config(str(tmp_path / "mkdocs.yml"), **options)
        with caplog.at_level(logging.WARNING, "mkdocs"):
            build(config)
        warnings = [record.getMessage() for record in caplog.records if record.name == "mkdocs.hooks.site_hooks"]
        return {path.name: path.read_text() for path in (tmp_path / "site").glob("*.html")}, warnings

    return page


def test_readme_is_the_first_page_and_its_links_lead_within_the_site(built):
    pages, warnings = built("# Top\n\n[a guide](docs/guide.md#guide)\n")
    assert '<a href="guide.html#guide">a guide</a>' in pages["index.html"]
    assert '<a href="index.html">Home</a>' in pages["guide.html"]
    assert not warnings


def test_a_link_into_the_repository_is_said_in_words(built):
    pages, warnings = built("# Top\n\n[the runs](docs/results), [run.sh](run.sh)\n")
    assert "the runs (<code>docs/results</code> in the repository), run.sh" in pages["index.html"]
    assert "script (<code>run.sh</code> in the repository)" in pages["guide.html"]
    assert not warnings


def test_a_link_into_the_repository_leads_to_its_address_where_that_is_known(built):
    pages, _ = built("# Top\n\n[the runs](docs/results)\n", repo_url="https://example.org/edgepeft")
    assert '<a href="https://example.org/edgepeft/blob/main/docs/results">the runs</a>' in pages["index.html"]


def test_a_bar_in_code_of_a_table_is_a_bar(built):
    pages, _ = built("# Top\n\n| norm | of |\n|---|---|\n| `\\|\\|W\\|\\|` | W |\n")
    assert "<code>||W||</code></td>\n<td>W</td>" in pages["index.html"]


@pytest.mark.parametrize("target", ["docs/gone.md", "gone.sh", "../outside.md"])
def test_a_link_that_leads_nowhere_is_a_warning(built, target):
    _, warnings = built(f"# Top\n\n[lost]({target})\n")
    assert warnings == [f"index.md links to {target}, which is not in the repository"]
