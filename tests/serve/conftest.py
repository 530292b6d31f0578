"""One service for the tests that only ask."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def served(exported, tmp_path_factory):
    """``edgepeft serve`` on the tiny bundle, with its defaults."""
    pytest.importorskip("uvicorn", reason="needs pip install edgepeft[serve]")
    from served import serving

    with serving(exported, tmp_path_factory.mktemp("serve"), "--no-cache") as running:
        yield running
