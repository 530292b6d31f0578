"""The page's modules run by node, which needs no npm package for what is tested by this."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

MODULE = Path(__file__).parents[2] / "edgepeft" / "_data" / "web" / "module"


def run_node(script: str, given: Any) -> Any:
    """What ``script``, the body of an async function of ``given`` that may import from MODULE, returns."""
    node = shutil.which("node")
    if node is None:
        pytest.skip("needs node")
    whole = (
        f'const MODULE = "{MODULE.as_uri()}/";\nlet text = "";\n'
        "for await (const part of process.stdin.setEncoding('utf8')) text += part;\n"
        f"const main = async (given) => {{\n{script}\n}};\n"
        "process.stdout.write(JSON.stringify(await main(JSON.parse(text))));\n"
    )
    command = [node, "--input-type=module", "-e", whole]
    done = subprocess.run(command, input=json.dumps(given), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
