"""Who computes float32 products: oneDNN only where it is faster, and only where the results are float32's."""

import pytest
import torch
from moods import rows
from small import METHODS
from torch.utils._python_dispatch import TorchDispatchMode

from edgepeft.data.parts import task_data
from edgepeft.options.verbs import TrainSettings
from edgepeft.training import devices, loop
from edgepeft.training.devices import attention_for, float32_by_onednn, is_float32

CPU = torch.device("cpu")
MATMUL = torch.backends.mkldnn.matmul


class Rounded(TorchDispatchMode):
    """Rounds the factors of float32 products to so many bits, as AMX (8) and TF32 (11) do."""

    def __init__(self, bits):
        super().__init__()
        self.bits = bits

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten.mm.default and args[0].dtype == torch.float32:
            mantissas, exponents = zip(*map(torch.frexp, args), strict=True)
            rounded = [torch.round(m * 2**self.bits) / 2**self.bits for m in mantissas]
            args = tuple(torch.ldexp(m, e) for m, e in zip(rounded, exponents, strict=True))
        return func(*args, **kwargs or {})


@pytest.fixture
def before():
    was = MATMUL.fp32_precision
    yield was
    MATMUL.fp32_precision = was


def test_products_of_rounded_factors_are_told_from_float32():
    assert is_float32()
    for bits in (8, 11):
        with Rounded(bits):
            assert not is_float32()
    with Rounded(24):
        assert is_float32()


def test_the_setting_holds_within_the_block_alone(before, monkeypatch):
    monkeypatch.setattr(devices, "_slow_mkl", lambda: True)
    monkeypatch.setattr(devices, "is_float32", lambda: True)
    with pytest.raises(KeyError), float32_by_onednn(CPU) as taken:
        assert taken
        assert MATMUL.fp32_precision == "bf16"
        raise KeyError
    assert MATMUL.fp32_precision == before


def test_nothing_is_set_where_products_would_be_rounded(before, monkeypatch):
    monkeypatch.setattr(devices, "_slow_mkl", lambda: True)
    with Rounded(8), float32_by_onednn(CPU) as taken:
        assert not taken
        assert MATMUL.fp32_precision == before


@pytest.mark.parametrize(
    ("device", "vendor"), [(CPU, "GenuineIntel"), (CPU, ""), (torch.device("meta"), "AuthenticAMD")]
)
def test_nothing_is_set_for_another_processor_or_device(device, vendor, before, monkeypatch):
    monkeypatch.setattr(devices, "cpu_vendor", lambda: vendor)
    with float32_by_onednn(device) as taken:
        assert not taken
        assert MATMUL.fp32_precision == before


def test_long_texts_keep_the_attention_that_needs_no_square_of_memory():
    assert attention_for(True, 128) == "eager"
    assert attention_for(True, 129) is None
    assert attention_for(False, 64) is None


def test_a_run_by_onednn_has_the_losses_of_one_by_mkl(small, tmp_path, monkeypatch):
    data = task_data(rows(24), eval=rows(8), test=rows(8))
    options = TrainSettings(task="mood", steps=4, batch_size=8, max_length=32, learning_rate=1e-3)
    found = []
    for vendor in ("GenuineIntel", "AuthenticAMD"):
        monkeypatch.setattr(devices, "cpu_vendor", lambda vendor=vendor: vendor)
        result = loop.train_delta(small, METHODS["mood"], data, options, tmp_path / vendor)
        found.append([each["loss"] for each in result.history])
    assert found[0]
    torch.testing.assert_close(*map(torch.tensor, found), rtol=1e-5, atol=0.0)
