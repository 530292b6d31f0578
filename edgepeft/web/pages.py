"""The pages of a site: their scripts with hashes (Subresource Integrity), and a policy without inline scripts.

A browser compares each script with its hash before it runs; those of the worker, which have no such attribute, the
service worker compares when it stores them.
"""

from __future__ import annotations

import base64
import hashlib
import shutil
from pathlib import Path

from edgepeft.common.atomic import write_atomically
from edgepeft.common.resources import package_data, sha256_of

__all__ = ["SERVICE_WORKER", "write_pages", "write_service_worker"]

SERVICE_WORKER = "sw.js"
# Nothing but the site's own files is loaded or asked, so what is typed goes nowhere. The policy of the answers is in
# site/sw.js too: a worker has none of its page.
_POLICY = (
    "default-src 'none'; script-src 'self' 'wasm-unsafe-eval'; worker-src 'self'; connect-src 'self'; "
    "style-src 'self'; img-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'"
)
_SCRIPTS = {
    "index.html": ("answers.js", "client.js", "picker.js", "page.js"),
    "verify.html": ("answers.js", "client.js", "verify.js"),
    "bench.html": ("answers.js", "client.js", "bench.js"),
}
_TUNING = {"tune.html": ("answers.js", "client.js", "store.js", "tune.js")}  # of a site that tunes
_STYLES = ("page.css", "site.css")


def write_pages(out: Path, title: str, *, tunable: bool = False) -> None:
    """Write the module, the worker and the pages."""
    shutil.copytree(package_data("web/module"), out / "module")
    pages = {**_SCRIPTS, **(_TUNING if tunable else {})}
    other = {name for page, scripts in _TUNING.items() if page not in pages for name in scripts[-1:]}
    for path in sorted(package_data("web/site").iterdir()):
        if path.name not in {*_SCRIPTS, *_TUNING, SERVICE_WORKER, *other}:
            shutil.copyfile(path, out / path.name)
    for name in ("page.css", "icon.svg", "answers.js", "picker.js"):  # as the service's page looks
        shutil.copyfile(package_data("serve") / name, out / name)
    for page, scripts in pages.items():
        head = [f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">']
        head += [f'<link rel="stylesheet" href="{name}" {_integrity(out / name)}>' for name in _STYLES]
        head += [f'<link rel="modulepreload" href="{name}" {_integrity(out / name)}>' for name in scripts[:-1]]
        head += [f'<script type="module" src="{scripts[-1]}" {_integrity(out / scripts[-1])}></script>']
        text = (package_data("web/site") / page).read_text(encoding="utf-8")
        filled = text.replace("<!-- head -->", "\n".join(head)).replace("<!-- title -->", title)
        write_atomically(out / page, filled.encode())


def write_service_worker(out: Path, manifest: str) -> None:
    """Write the service worker of this manifest: with another it is another file, which browsers take for an update."""
    text = (package_data("web/site") / SERVICE_WORKER).read_text(encoding="utf-8")
    filled = text.replace("SHA256_OF_MANIFEST", sha256_of(out / manifest)).replace("POLICY", _POLICY)
    write_atomically(out / SERVICE_WORKER, filled.encode())


def _integrity(path: Path) -> str:
    digest = base64.b64encode(hashlib.sha256(path.read_bytes()).digest()).decode()
    return f'integrity="sha256-{digest}"'
