"""Whisper tiny.en on a Raspberry Pi 4, the one Transformer with ONNX Runtime whose speed on that board is published.

Radford et al., 2022, arXiv:2212.04356.  Times: k2-fsa/sherpa, docs/source/onnx/pretrained_models/whisper/tiny.en.rst
(commit 0125252) and docs/source/onnx/tts/pretrained_models/rtf.rst (commit 0dd43df); read on 2026-11-26.

What is published is the time of a whole program.  Its encoder always reads 30 s of sound and runs on all threads; the
decoder's 60 steps read 100 MB each and gain nothing by threads.  So seconds = the rest + encoder / speed-up (Amdahl,
1967), with the speed-up of the models of the second page.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence

from bench.published.graphs import encoder, matrix
from edgepeft.common.operators import Work

SOUND_S = 16.715  # test_wavs/1.wav
# Seconds of computing for one of sound, with 1, 2, 3 and 4 threads.
REAL_TIME_FACTORS = {"fp32": (0.685, 0.559, 0.526, 0.520), "int8": (0.547, 0.431, 0.398, 0.386)}
_SPEECH = (  # text to speech, all fp32: convolutions and products that fill all threads
    (6.727, 3.877, 2.914, 2.518),  # vits-melo-tts-zh_en
    (0.812, 0.480, 0.391, 0.349),  # vits-piper-en_US-glados
    (0.790, 0.493, 0.392, 0.357),  # vits-piper-en_US-libritts_r-medium
    (6.057, 3.517, 2.535, 2.206),  # vits-ljspeech
    (6.079, 3.483, 2.537, 2.226),  # vits-vctk
    (4.275, 2.494, 1.840, 1.593),  # sherpa-onnx-vits-zh-ll
    (4.306, 2.451, 1.846, 1.600),  # vits-zh-hf-fanchen-C
    (4.276, 2.505, 1.827, 1.608),  # vits-zh-hf-fanchen-wnj
    (6.032, 3.448, 2.566, 2.210),  # vits-zh-hf-theresa
    (6.011, 3.473, 2.537, 2.231),  # vits-zh-hf-eula
    (0.365, 0.220, 0.171, 0.156),  # vits-aishell3
    (0.774, 0.482, 0.390, 0.357),  # vits-piper-en_US-lessac-medium
    (0.892, 0.536, 0.432, 0.391),  # matcha-icefall-zh-baker
    (0.941, 0.561, 0.451, 0.411),  # matcha-icefall-en_US-ljspeech
    (6.629, 3.870, 2.999, 2.774),  # kokoro-en-v0_19
)
SPEEDUPS = tuple(zip(*([row[0] / one for one in row] for row in _SPEECH), strict=True))  # of each model, by threads
_FRAMES, _MELS, _WIDTH, _LAYERS, _HEADS = 3000, 80, 384, 4, 6


def whisper_tiny_encoder() -> tuple[Work, ...]:
    """Two convolutions of kernel 3, four layers on 1,500 positions, and the keys and values that the decoder's four
    layers read, which sherpa's graph of the encoder computes too."""
    positions = _FRAMES // 2
    return (
        matrix("conv1", _FRAMES, 3 * _MELS, _WIDTH),
        matrix("conv2", positions, 3 * _WIDTH, _WIDTH),
        *encoder(_LAYERS, positions, _WIDTH, _HEADS, 4 * _WIDTH),
        *(matrix(f"cross.{i}.{part}", positions, _WIDTH, _WIDTH) for i in range(_LAYERS) for part in ("key", "value")),
    )


def encoder_seconds(
    precision: str, threads: int, speedup: Callable[[Sequence[float]], float] = statistics.median
) -> float:
    """The encoder's share of the published times with 1 and 4 threads; ``speedup``: which of the fifteen is taken."""
    one, *_, four = (factor * SOUND_S for factor in REAL_TIME_FACTORS[precision])
    return (one - four) / (1 - 1 / speedup(SPEEDUPS[3])) / speedup(SPEEDUPS[threads - 1])
