"""A suite on a tiny backbone."""

from __future__ import annotations

import pytest
from tiny import SIZES

from bench.suites import _random_bundle, _suite_run
from bench.suites._suite_run import SuiteRun
from edgepeft.device.placement import Limits


@pytest.fixture(scope="module")
def tiny_run(tmp_path_factory):
    """A function from a model type, changes of its tiny config and rounds to a run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("EDGEPEFT_CACHE", str(tmp_path_factory.mktemp("cache")))

        def make(model_type, rounds=2, **sizes):
            config = {"model_type": model_type, **SIZES[model_type], **sizes}
            for module in (_random_bundle, _suite_run):
                patch.setattr(module, "config_in", lambda name: config)
            return SuiteRun(tmp_path_factory.mktemp(model_type), "tiny", Limits(), 1, rounds, 60.0)

        yield make
