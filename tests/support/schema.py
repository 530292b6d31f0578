"""Schemathesis against the service's own OpenAPI document: every answer is one that the document promises.

    pip install schemathesis
    python tests/support/schema.py --examples 500

The service runs with tuning allowed on a small bundle; its job of tuning may be started and cancelled by what is sent.
Prints schemathesis' own counts; exit 1 where it finds something, or where the service did not end well afterwards.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from service import start
from subject import subject

# A deadline that the client asked for may pass: 504 is an answer.  A job that was stopped by DELETE can still be asked how it
# ended, so that check is left out.
CONFIG = """
[checks.not_a_server_error]
expected-statuses = ["2xx", "3xx", "4xx", 503, 504]

[parameters]
"path.task" = "mood"
"""


def main() -> None:
    """Run schemathesis' command against the service."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--examples", type=int, default=500, help="of each operation")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    program = shutil.which("schemathesis", path=f"{Path(sys.executable).parent}:{sys.exec_prefix}/bin") or shutil.which(
        "schemathesis"
    )
    if program is None:
        raise SystemExit("schemathesis is not installed: pip install schemathesis")
    folder = Path(tempfile.mkdtemp(prefix="edgepeft-schema."))
    bundle = subject(folder / "subject")
    process, address = start(bundle, folder / "serve.log", ["--allow-tuning", "--no-cache"])
    try:
        options = [
            "--checks",
            "all",
            "--exclude-checks",
            "use_after_free",
            "--max-examples",
            str(asked.examples),
            "--seed",
            str(asked.seed),
            "--no-color",
        ]
        (folder / "schemathesis.toml").write_text(CONFIG)
        given = ["--config-file", str(folder / "schemathesis.toml")]
        done = subprocess.run([program, *given, "run", f"{address}/openapi.json", *options], check=False, cwd=folder)
    finally:
        process.terminate()
        code = process.wait(60)
    print(f"the service ended with {code}; its log: {folder / 'serve.log'}", file=sys.stderr)
    sys.exit(1 if done.returncode or code else 0)


if __name__ == "__main__":
    main()
