from __future__ import annotations

import pytest

from edgepeft.backbones.base import Architecture, Role, Site, family_of
from edgepeft.backbones.config import config_of


@pytest.fixture
def tiny_sites() -> tuple[Site, ...]:
    return tuple(Site(f"layer.{i}.query", Role.QUERY, i, 12, 7) for i in range(2))


@pytest.fixture
def named():
    def architecture(name: str) -> Architecture:
        config = config_of(name)
        return family_of(config).architecture(config)

    return architecture
