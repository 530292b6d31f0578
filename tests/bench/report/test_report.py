"""The report as a reader's tools see it: parsers of HTML and XML, and the command line."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from verbs import edgepeft

from edgepeft.bench.report.build import build_report, read_inputs, sections
from edgepeft.common.errors import DataError, UsageError

NAME = '<img src=x onerror=alert(1)>|`"&'


def row(task="topic", seconds=1.0, **fields):
    return {
        "scenario": "offline",
        "workload": "infer",
        "engine": "onnxruntime",
        "task": task,
        "method": "lora",
        "batch_size": 2,
        "sequence_length": 8,
        "threads": 2,
        "samples_s": [seconds, 1.1 * seconds, 0.9 * seconds],
        "instances_per_minute": 120 / seconds,
        "latency_s": {"p50": seconds, "p90": None, "p99": None},
        "ratio_to": {},
        "warnings": ["noisy: very (hint)"],
        **fields,
    }


def group(name, seconds):
    return {
        "name": name,
        "count": 2,
        "seconds": seconds,
        "flops": 10**9,
        "bytes": 10**6,
        "floor_s": 0.5 * seconds,
        "gap": 2.0,
    }


def bench(*rows, **top):
    told = {"method": "lora", "trainable_parameters": 1234, "n_bytes": 5000, "metric": "accuracy", "score": 0.9}
    return {
        "schema": "edgepeft.bench/1",
        "host": {"cpu": "C", "gemm_gflops": 100.0},
        "profile": {"name": "rpi4", "limits": {"in_force": {"cores": 2, "memory_bytes": 10**9, "backend": "test"}}},
        "model": {"name": "m", "random_weights": False, "tasks": {row["task"]: told for row in rows}},
        "measured_at": "2026-01-01T00:00:00+00:00",
        "commit": "abcdef0123456789",
        "operators": [
            {
                "of": "backbone",
                "rows": 2,
                "tokens": 16,
                "ceilings": {"flops_per_s": 1e11, "bytes_per_s": 1e10},
                "outside_s": 0.0,
                "by_type": [group("Gemm", 0.2), group("Add", 0.1)],
                "by_layer": [group("layer 0", 0.3)],
            }
        ],
        "results": list(rows),
        **top,
    }


@pytest.fixture
def files(tmp_path):
    def write(*documents):
        paths = []
        for number, document in enumerate(documents):
            paths.append(tmp_path / f"r{number}.json")
            paths[-1].write_text(document if isinstance(document, str) else json.dumps(document))
        return paths

    return write


class Page(HTMLParser):
    """Every tag with its attributes, and the text of the cells."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.ids = [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]

    def of(self, tag):
        return [attrs for name, attrs in self.tags if name == tag]


@pytest.fixture
def page(files, tmp_path):
    build_report(files(bench(row(), row("spam", 2.0))), tmp_path / "out")
    return Page((tmp_path / "out" / "index.html").read_text())


def test_the_page_loads_nothing_from_anywhere(page, tmp_path):
    text = (tmp_path / "out" / "index.html").read_text()
    assert not [attrs for _, attrs in page.tags if "src" in attrs]
    assert all(attrs.get("href", "#").startswith("#") for attrs in page.of("a"))
    assert not page.of("link")
    # Addresses are names of XML vocabularies only.
    assert set(re.findall(r"https?://[^\s\"'<>]+", text)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    (policy,) = [attrs["content"] for attrs in page.of("meta") if attrs.get("http-equiv")]
    assert "default-src 'none'" in policy


def test_the_page_can_be_read_by_ear_and_by_keyboard(page):
    assert page.of("html")[0]["lang"] == "en"
    assert len(page.of("main")) == len(page.of("h1")) == 1
    assert all(attrs["role"] == "img" and attrs["aria-labelledby"] in page.ids for attrs in page.of("svg"))
    assert all(attrs["aria-labelledby"] in page.ids for attrs in page.of("section"))
    headings = [attrs for attrs in page.of("th") if attrs.get("scope") == "col"]
    assert len(headings) == len(page.of("button"))
    assert len(page.of("caption")) == len(page.of("table")) == len(page.of("section"))
    assert {attrs["tabindex"] for attrs in page.of("div") if attrs.get("role") == "region"} == {"0"}


def test_no_id_stands_twice_though_every_picture_has_its_own(page):
    assert len(page.ids) == len(set(page.ids))
    assert len(page.of("svg")) >= 5


def test_the_page_knows_dark_and_narrow_screens(page, tmp_path):
    text = (tmp_path / "out" / "index.html").read_text()
    assert "prefers-color-scheme: dark" in text
    assert [a for a in page.of("meta") if a.get("name") == "viewport"]
    assert "#000000" not in text.split("</style>")[1]  # ink comes from the page


def test_names_from_a_file_stay_text(files, tmp_path):
    build_report(files(bench(row(NAME))), tmp_path / "out")
    html, markdown = ((tmp_path / "out" / name).read_text() for name in ("index.html", "report.md"))
    assert not [attrs for name, attrs in Page(html).tags if name == "img"]
    assert "&lt;img" in html
    assert "<img" not in markdown.replace("\\<img", "")


def test_the_pictures_beside_the_markdown_are_whole_files(files, tmp_path):
    build_report(files(bench(row())), tmp_path / "out")
    markdown = (tmp_path / "out" / "report.md").read_text()
    named = re.findall(r"\]\((pictures/[^)]+)\)", markdown)
    assert sorted(named) == sorted(
        str(p.relative_to(tmp_path / "out")) for p in (tmp_path / "out" / "pictures").iterdir()
    )
    for name in named:
        assert ElementTree.parse(tmp_path / "out" / name).getroot().tag == "{http://www.w3.org/2000/svg}svg"


def test_the_same_results_give_the_same_bytes(files, tmp_path):
    paths = files(bench(row()))
    for name in ("one", "two"):
        build_report(paths, tmp_path / name)
    assert (tmp_path / "one" / "index.html").read_bytes() == (tmp_path / "two" / "index.html").read_bytes()


def found(*paths):
    return {one.key: one for one in sections(read_inputs(list(paths)))}


def test_bars_have_the_medians_interval(files):
    section = found(*files(bench(row(seconds=1.0))))["throughput-0-infer"]
    ((_, rate, low, high, p50, _),) = section.rows
    assert (rate, p50) == (120.0, 1000.0)
    assert low == pytest.approx(120 / 1.1, abs=0.01)  # of three samples the interval has their extremes
    assert high == pytest.approx(120 / 0.9, abs=0.01)


def test_storage_throughput_and_score_stand_side_by_side(files):
    (known,) = found(*files(bench(row())))["storage"].rows
    assert list(known) == ["topic", "lora", 5000, 120.0, "accuracy", 0.9]


def test_history_orders_commits_by_time(files):
    later = bench(row(seconds=2.0), measured_at="2026-02-01T00:00:00+00:00", commit="fedcba9876543210")
    section = found(*files(later, bench(row())))["history"]
    assert [(line[1], line[3]) for line in section.rows] == [("abcdef01", 120.0), ("fedcba98", 60.0)]


def test_one_result_has_no_history(files):
    assert "history" not in found(*files(bench(row())))


def test_sections_of_one_name_are_told_apart_by_their_file(files):
    titles = [one.title for one in found(*files(bench(row()), bench(row(seconds=2.0)))).values()]
    assert len(titles) == len(set(titles))


@pytest.mark.parametrize(
    ("document", "error", "words"),
    [
        ("", DataError, "not JSON"),
        ('{"schema": "edgepeft.bench/1", "results"', DataError, "not JSON"),
        ("[1]", DataError, "list"),
        ({"schema": "edgepeft.bench/2", "results": []}, DataError, "edgepeft.bench/2"),
        ({"schema": "edgepeft.quickstart/1"}, DataError, "backbone is missing.*edited or cut"),
        (bench(row(samples_s=[-1.0])), DataError, "samples_s"),
        (bench(row(), operators=[{}]), DataError, "operators.*edited or cut"),
        (
            bench(row(samples_s=[], instances_per_minute=None), operators=[], model={}),
            DataError,
            "nothing was measured",
        ),
    ],
)
def test_what_is_no_result_is_refused_and_nothing_is_written(files, tmp_path, document, error, words):
    with pytest.raises(error, match=rf"(?s)r0\.json.*{words}|{words}.*r0\.json"):
        build_report(files(document), tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_file_that_is_not_there_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match=r"none\.json"):
        read_inputs([tmp_path / "none.json"])


def test_a_folder_of_something_else_is_not_said_to_be_missing(tmp_path):
    with pytest.raises(UsageError, match=r"is a folder of neither a trained delta \(delta\.json\) nor a sweep"):
        read_inputs([tmp_path])


def test_the_verb_writes_a_folder_and_replaces_it_only_when_told(files, tmp_path):
    (path,) = files(bench(row()))
    out = tmp_path / "out"
    assert edgepeft("report", path, "--out", out).returncode == 0
    assert {p.name for p in out.iterdir()} == {"index.html", "report.md", "pictures"}
    assert edgepeft("report", path, "--out", out).returncode == 2
    assert edgepeft("report", path, "--out", out, "--force").returncode == 0
    assert edgepeft("report", Path(__file__), "--out", tmp_path / "no").returncode == 1


def test_the_kinds_of_throughput_are_never_taken_for_one_another(files):
    """Limits, calibrated and predicted of one model: three titles, and what each can be trusted with."""
    seconds = dict.fromkeys(("device_s", "host_s", "achieved_s", "tolerance", "quota_cores"), 1.0)
    calibration = {"share": 0.088, "reference": "ViT, ncnn", "error": 0.035, "flops": 10**9, "cores": 2, **seconds}
    calibration |= {"percentiles": False, "trials": [], "residuals": [], "in_rounds_s": {}, "in_rounds_error": {}}
    predicted = {"calibration": "uncalibrated", "instances_per_minute_interval": [15.0, 75.0]}
    inputs = read_inputs(
        files(
            bench(row(), mode="limits"),
            bench(row(), mode="calibrated", calibration=calibration),
            bench(row(samples_s=[], predicted=predicted, instances_per_minute=37.0), mode="predicted"),
        )
    )
    made = {one.title: one for one in sections(inputs) if one.title.startswith("Throughput")}
    titles = ["Throughput: inf", "Throughput, calibrated to rpi4: inf", "Throughput, predicted for rpi4: inf"]
    assert [any(title.startswith(start) for title in made) for start in titles] == [True] * 3
    calibrated, predicted = (next(one for title, one in made.items() if word in title) for word in ("calib", "predic"))
    assert "8.8% of the cores' time" in calibrated.text and "+3.5%" in calibrated.text
    assert "nothing ran: uncalibrated" in predicted.text
    assert predicted.rows[0][1:4] == (37.0, 15.0, 75.0)
    history = [one for one in sections(inputs) if one.key == "history"]
    assert history == []  # three kinds of one figure are no history
