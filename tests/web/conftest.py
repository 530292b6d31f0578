"""Sites of tiny bundles, with libraries that stand for npm's."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from edgepeft.web import site
from edgepeft.web.site import LibraryFile

FILES = {
    "onnxruntime-web": {"dist/ort.mjs": "lib/ort.mjs", "dist/ort.wasm": "lib/ort.wasm"},
    "@huggingface/tokenizers": {"dist/t.mjs": "lib/tokenizers.mjs"},
}


@pytest.fixture
def modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A ``node_modules`` of small files, and the table of hashes that belongs to it."""
    folder, table = tmp_path / "node_modules", []
    for package, files in FILES.items():
        for path, name in files.items():
            content = f"{package} {path}".encode()
            (folder / package / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / package / path).write_bytes(content)
            table.append(LibraryFile(package, "1.0.0", path, name, hashlib.sha256(content).hexdigest()))

    def of(packages):
        return [file for file in table if file.package in packages]

    monkeypatch.setattr(site, "library_files", of)
    return folder
