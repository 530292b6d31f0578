"""Every parameter count that the seed papers and their authors' code give, as `edgepeft count` prints it.

T5-base with the 32,100 rows of its tokenizer; a = 2 m d + m + d = 37,656 parameters of an adapter of m = 24.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from typer.testing import CliRunner

from edgepeft.cli._main import app
from edgepeft.methods.base import methods

T5_BASE = 222_882_048
A, NORMS = 37_656, 62 * 768

# Method, its settings, count, percent of T5-base to the digits of the Compacter paper's arithmetic.
ON_T5 = [
    ("houlsby", {"bottleneck": 24}, 48 * A + NORMS, 1_855_104, "0.832"),
    ("pfeiffer", {"bottleneck": 24, "norms": True, "placement": "attention"}, 24 * A + NORMS, 951_360, "0.427"),
    ("adapterdrop", {"bottleneck": 24}, 28 * A + NORMS, 1_101_984, "0.494"),
    ("adapter-lowrank", {"bottleneck": 24}, 48 * 3 * (768 + 24) + NORMS, 161_664, "0.0725"),
    ("phm", {"bottleneck": 24, "n": 4}, 48 * (2 * (4**3 + 768 * 24 // 4) + 792) + NORMS, 534_144, "0.240"),
    ("phm", {"bottleneck": 24, "n": 8}, 48 * (2 * (8**3 + 768 * 24 // 8) + 792) + NORMS, 355_968, "0.160"),
    ("phm", {"bottleneck": 24, "n": 12}, 48 * (2 * (12**3 + 768 * 24 // 12) + 792) + NORMS, 398_976, "0.179"),
    ("compacter", {"bottleneck": 24, "n": 4}, 48 * 3 * 792 + 4**3 + NORMS, 161_728, "0.0726"),
    ("compacter++", {"bottleneck": 24, "n": 4}, 24 * 3 * 792 + 4**3 + NORMS, 104_704, "0.0470"),
    ("compacter++", {"bottleneck": 24, "n": 12}, 24 * 3 * 792 + 12**3 + NORMS, 106_368, "0.0477"),
    ("bitfit", {}, 12 * (8448 + 12288) + 32_100, 280_932, "0.126"),
    ("prompt-r", {}, 100 * 768, 76_800, "0.0345"),
    ("prompt-t", {}, 100 * 768, 76_800, "0.0345"),
    ("intrinsic-said", {}, 20_000, 20_000, "0.0090"),
    ("layernorm", {}, NORMS, 47_616, "0.0214"),
    # Liu et al., section 3.3: d_k + d_v + d_ff a layer of the encoder, 2 d_k + 2 d_v + d_ff of the decoder.
    ("ia3", {}, 12 * (2 * 768 + 3072) + 12 * (4 * 768 + 3072), 129_024, "0.0579"),
    ("full", {}, T5_BASE, 222_882_048, "100"),
]


def existing(rows: list[tuple[Any, ...]]) -> list[Any]:
    return [pytest.param(*row, id=f"{row[0]}-{row[1]}") for row in rows if row[0] in methods()]


def count(*arguments: str) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["count", "--json", *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


def counted(backbone: str, method: str, settings: dict[str, Any]) -> dict[str, Any]:
    words = [word for name, value in settings.items() for word in ("--set", f"{name}={value}")]
    return count("--backbone", backbone, "--method", method, *words)


@pytest.mark.parametrize(("method", "settings", "formula", "published", "percent"), existing(ON_T5))
def test_a_count_on_t5_base_is_the_published_one(
    method: str, settings: dict[str, Any], formula: int, published: int, percent: str
):
    assert formula == published
    found = counted("t5-base", method, settings)
    assert found["backbone_parameters"] == T5_BASE
    assert found["trained_parameters"] == {"delta": published, "head": 0, "total": published}
    digits = len(percent.partition(".")[2])
    assert f"{found['percent_of_backbone']:.{digits}f}" == percent


def test_roberta_base_has_its_published_size():
    assert counted("roberta-base", "full", {})["trained_parameters"]["delta"] == 124_055_040


# SPARTAN's table 1 and appendix E: times the backbone, million parameters, GB of nine tasks. It counts no
# LayerNorm, head or adapter's bias, 123.0 million for the backbone, and values for SPARTAN's parents.
SPARTANS_TABLE = {
    "full": (9.0, 1107, 4.43),
    "houlsby": (1.2, 144.23, 0.58),
    "pfeiffer": (1.1, 133.62, 0.53),
    "spartan": (1.1, 133.62, 0.53),
}
TABLE = (
    "--backbone",
    "roberta-base",
    "--tasks",
    "9",
    *(word for name in SPARTANS_TABLE for word in ("--method", name)),
)


def test_one_command_prints_spartans_storage_table():
    n, rows = 124_055_040, {row["method"]: row for row in count(*TABLE, "--head", "none")["counts"]}
    assert list(rows) == list(SPARTANS_TABLE)
    deltas = {"houlsby": 2_379_264 + 38_400, "pfeiffer": 1_189_632, "spartan": 1_032_192 + 38_400}
    totals = {"full": 9 * n} | {name: n + 9 * delta for name, delta in deltas.items()}
    for name, (times, million, gigabytes) in SPARTANS_TABLE.items():
        assert rows[name]["total_parameters"] == totals[name]
        assert rows[name]["bytes"]["total"] == 4 * totals[name]
        assert round(rows[name]["times_the_backbone"], 1) == times
        assert totals[name] / 1e6 == pytest.approx(million, rel=0.012)
        assert rows[name]["bytes"]["total"] / 1e9 == pytest.approx(gigabytes, rel=0.02)


def test_the_storage_tables_multiples_hold_with_heads_too():
    rows = {row["method"]: row for row in count(*TABLE)["counts"]}
    assert {name: round(row["times_the_backbone"], 1) for name, row in rows.items()} == {
        name: times for name, (times, *_) in SPARTANS_TABLE.items()
    }


def test_the_storage_table_shows_parameters_and_gigabytes():
    result = CliRunner().invoke(app, ["count", *TABLE, "--head", "none"], env={"COLUMNS": "120"})
    for part in ("9 tasks on roberta-base", "1,116.50", "4.466", "9.00x", "145.81", "0.583", "134.76", "0.535"):
        assert part in result.stdout
