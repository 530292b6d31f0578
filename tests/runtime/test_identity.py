"""Weights are trusted by their identity only where that identity is of the bytes that were hashed."""

import pytest

from edgepeft.bundle import bundle as bundle_module
from edgepeft.bundle.bundle import Bundle
from edgepeft.common.errors import BundleError
from edgepeft.common.resources import file_identity
from edgepeft.runtime.runtime import Runtime


def test_weights_that_are_rewritten_while_they_are_hashed_are_not_accepted(bundle, monkeypatch):
    weights = bundle / "model.safetensors"
    hashed = bundle_module.sha256_of

    def sha256_of(path):
        digest = hashed(path)
        if path == weights:  # the last block was read; now somebody writes
            content = bytearray(weights.read_bytes())
            content[-1] ^= 1
            weights.write_bytes(content)
        return digest

    monkeypatch.setattr(bundle_module, "sha256_of", sha256_of)
    opened = Bundle(bundle)
    with pytest.raises(BundleError, match="changed while it was read"):
        _ = opened.checkpoint
    assert opened.sound_weights == frozenset()


def test_only_the_identity_that_was_hashed_is_kept_for_the_next_process(bundle, monkeypatch):
    weights = bundle / "model.safetensors"
    external_data = Bundle.external_data

    def replaced_after(self, model):  # and before the identity is kept
        found = [*external_data(self, model)]
        content = bytearray(weights.read_bytes())
        content[-1] ^= 1
        weights.with_suffix(".new").write_bytes(content)
        weights.with_suffix(".new").replace(weights)
        return found

    with Runtime(bundle) as runtime:
        monkeypatch.setattr(Bundle, "external_data", replaced_after)
        with pytest.raises(BundleError, match="not the file that the bundle was made with"):  # small tensors are read
            runtime.predict("mood", ["w5"])
        monkeypatch.undo()
        kept = runtime._pool._prepacked.seen()
    assert kept and file_identity(weights) not in kept
    with pytest.raises(BundleError, match="not the file that the bundle was made with"), Runtime(bundle) as again:
        again.predict("mood", ["w5"])


def test_the_cache_is_this_users_alone(bundle, monkeypatch, tmp_path):
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    with Runtime(bundle) as runtime:
        runtime.predict("mood", ["w5"])
    assert (tmp_path / "cache/prepacked").stat().st_mode & 0o777 == 0o700


def test_a_cache_that_another_user_owns_is_not_read(bundle, monkeypatch, tmp_path, given_away):
    monkeypatch.setenv("EDGEPEFT_CACHE", str(tmp_path / "cache"))
    (tmp_path / "cache/prepacked").mkdir(parents=True)
    owner = given_away(tmp_path / "cache/prepacked")
    with Runtime(bundle) as runtime, pytest.warns(RuntimeWarning, match=f"user {owner}"):
        assert runtime.predict("mood", ["w5"])
    assert list((tmp_path / "cache/prepacked").iterdir()) == []
