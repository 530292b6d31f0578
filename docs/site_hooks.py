"""Hooks of mkdocs: README is the site's first page, and links into the repository are checked.

A page on a forge may link to any file of the repository, a site only to what it holds. A link that leaves the site
leads to the file at ``repo_url`` where mkdocs.yml has one, and becomes the file's path in words where it has none. A
file that is not there is a warning, with which ``mkdocs build --strict`` fails.
"""

from __future__ import annotations

import logging
import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

LOG = logging.getLogger("mkdocs.hooks.site_hooks")
# An image, or the text and target of a link; a target with a scheme, or of this page, is nobody's file.
LINK = re.compile(r"(!?)\[((?:[^\]\[]|\[[^\]]*\])*)\]\((?![a-z]+:|#)([^)\s#]+)(#[^)\s]*)?\)")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add README as ``index.md``."""
    readme = (_repository(config) / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=readme))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Have each link lead to a page of the site, or into the repository."""
    root, docs = _repository(config), Path(config.docs_dir).name
    folder = "" if page.file.src_uri == "index.md" else posixpath.dirname(f"{docs}/{page.file.src_uri}")

    def led(link: re.Match[str]) -> str:
        image, text, target, anchor = link[1], link[2], link[3], link[4] or ""
        path = posixpath.normpath(posixpath.join(folder, target))
        here = files.get_file_from_path(posixpath.relpath(path, docs))
        if path == "README.md":
            here = files.get_file_from_path("index.md")
        if here is not None and here.inclusion.is_included():
            start = posixpath.dirname(page.file.src_uri) or "."
            return f"{image}[{text}]({posixpath.relpath(here.src_uri, start)}{anchor})"
        if path.startswith("../") or not (root / path).exists():
            LOG.warning("%s links to %s, which is not in the repository", page.file.src_uri, target)
        if config.repo_url:
            return f"[{text}]({config.repo_url.rstrip('/')}/blob/main/{path}{anchor})"
        return text if path in text else f"{text} (`{path}` in the repository)"

    return "\n".join(_row(line) if line.startswith("|") else line for line in LINK.sub(led, markdown).split("\n"))


def _row(line: str) -> str:
    r"""A table's row whose code has plain bars: a forge wants them as ``\|``, Python-Markdown shows the backslash."""
    return re.sub(r"`[^`]+`", lambda code: code[0].replace(r"\|", "|"), line)


def _repository(config: MkDocsConfig) -> Path:
    return Path(config.config_file_path).parent
