"""``python -m bench.peers NAME FOLDER OUT [TASK]``: exports a model for a peer, by an interpreter that has it."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

from bench.peers import PEERS

if __name__ == "__main__":
    name, folder, out, *task = sys.argv[1:]
    module, _, function = PEERS[name].export.partition(".")
    getattr(import_module(f"bench.peers.{module}"), function)(Path(folder), Path(out), *task)
