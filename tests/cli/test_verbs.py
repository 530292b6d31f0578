"""The verbs that need no torch, as a user calls them: output, exit codes, and no traceback ever."""

import contextlib
import errno
import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated

import numpy as np
import pytest
import typer
from typer.testing import CliRunner
from verbs import ENTRY, edgepeft, process

from edgepeft.backbones.tokens import Text
from edgepeft.cli._main import app, main
from edgepeft.cli._scores import show_errors
from edgepeft.common.progress import messages, say
from edgepeft.runtime.runtime import Runtime


def test_run_prints_a_line_for_each_task_and_text(exported):
    done = edgepeft("run", exported, "--task", "mood", "--task", "score", "w7 w8", "w9")
    lines = [line.split("\t") for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [line[0] for line in lines] == ["mood", "score", "mood", "score"]
    assert [line[-1] for line in lines] == ["w7 w8", "w7 w8", "w9", "w9"]


def test_a_folder_that_went_away_under_its_user_is_said_to_have(exported, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    done = edgepeft("run", exported, "--task", "mood", "w5")
    assert done.returncode == 1 and "this folder was removed or replaced while you were in it" in done.stderr


def test_a_home_behind_an_equals_sign_is_the_users(monkeypatch, tmp_path):
    """bash and dash leave it as it is: a folder called ~ was made."""
    seen = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["edgepeft", "merge", "--out=~/b", "--data=~", "--task=~x", "~/y", "--text=a~/b"])
    with pytest.raises(SystemExit):
        main(lambda **_: seen.extend(sys.argv[2:]))
    assert seen == [f"--out={tmp_path}/b", f"--data={tmp_path}", "--task=~x", "~/y", "--text=a~/b"]


def test_run_json_is_one_document_and_the_rest_goes_to_stderr(exported):
    done = process("run", exported, "--task", "mood", "--json", "w7", "w8 " * 500)
    answers = json.loads(done.stdout)
    assert [answer["text"] for answer in answers] == ["w7", "w8 " * 500]
    assert answers[0]["predictions"][0]["label"] in ("no", "yes")
    assert done.stderr.count("cut to the task's maximal length") == 1


def test_run_reads_pairs(exported):
    done = edgepeft("run", exported, "--task", "pair", "w7", "--second", "w9 w9", "--json")
    single = edgepeft("run", exported, "--task", "pair", "w7", "--json")
    assert json.loads(done.stdout)[0]["second"] == "w9 w9"
    assert json.loads(done.stdout)[0]["predictions"] != json.loads(single.stdout)[0]["predictions"]


def test_run_turns_a_file_into_jsonl_in_order(exported, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps({"sentence1": f"w{5 + i % 40}"}) + "\n" for i in range(70)))
    done = edgepeft("run", exported, "--task", "mood", "--input", rows)
    assert [json.loads(line)["text"] for line in done.stdout.splitlines()] == [f"w{5 + i % 40}" for i in range(70)]
    document = edgepeft("run", exported, "--task", "mood", "--input", rows, "--json")
    assert json.loads(document.stdout) == [json.loads(line) for line in done.stdout.splitlines()]


def mean_of_tokens(bundle, text):
    with Runtime(bundle, cache=False) as runtime:
        return runtime.last_hidden_state(runtime.bundle.encoder().encode([Text(text)], 60).inputs)[0].mean(0)


def written(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_package_is_the_command_too():
    done = subprocess.run([sys.executable, "-m", "edgepeft", "--version"], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, process("--version").stdout)


@pytest.mark.parametrize("action", ["ignore", "error"])
def test_python_s_warning_options_leave_the_notes_of_a_verb(tmp_path, action):
    (path := tmp_path / "movies.bio").write_text("O\thi\nB-ACTOR\tBruce\n\n" * 20)
    command = [sys.executable, "-W", action, "-m", "edgepeft", "look", path]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "note: " in done.stderr and "the first column has the tags" in done.stderr


@pytest.mark.parametrize("form", [(), ("--json",)])
def test_run_escapes_what_has_no_utf_8_and_nothing_else(exported, tmp_path, form):
    texts = ["w7 \ud800", "w7 äöü \u4f60", "\udcff"]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"sentence1": text}) + "\n" for text in texts))
    done = process("run", exported, "--task", "mood", "--input", tmp_path / "rows.jsonl", *form)
    assert not done.returncode, done.stderr
    answers = json.loads(done.stdout) if form else [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["text"] for answer in answers] == texts
    assert "äöü \u4f60" in done.stdout


def test_a_row_that_cannot_be_read_ends_the_json_array_after_the_answers_before_it(exported, tmp_path):
    sound = [json.dumps({"sentence1": f"w{i}"}) for i in range(5, 45)]
    (tmp_path / "rows.jsonl").write_text("\n".join([*sound, "{", *sound]))
    done = edgepeft("run", exported, "--task", "mood", "--input", tmp_path / "rows.jsonl", "--json")
    assert (done.returncode, "rows.jsonl:41" in done.stderr) == (1, True)
    assert [answer["text"] for answer in json.loads(done.stdout)] == [f"w{i}" for i in range(5, 37)]


def test_run_escapes_a_byte_of_the_command_line_that_is_no_utf_8(exported):
    done = process("run", exported, "--task", "mood", "w7 \udcff")  # as Python hands the byte 0xff over
    assert (done.returncode, "w7 \\udcff" in done.stdout) == (0, True), done.stderr


def test_run_answers_each_row_of_a_file_with_the_task_that_it_names(exported, tmp_path):
    names = ["mood", None, "pair", "score", "pair", "mood", "", "score"]
    rows = [{"sentence1": f"w{7 + i} w9", "duty": name} for i, name in enumerate(names)]
    rows[2]["sentence2"] = "w11 w12"
    del rows[1]["duty"]
    file = written(tmp_path / "rows.jsonl", rows)
    done = edgepeft("run", exported, "--input", file, "--task-column", "duty", "--batch-size", "3")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert done.stderr == "note: task pair: the task was trained on pairs of texts, and one text was given.\n"  # row 5
    assert [(answer["text"], answer["task"]) for answer in found] == [
        (row["sentence1"], name or None) for row, name in zip(rows, names, strict=True)
    ]
    for row, answer in zip(rows, found, strict=True):
        if answer["task"] is None:
            assert "predictions" not in answer
            np.testing.assert_allclose(answer["embedding"], mean_of_tokens(exported, row["sentence1"]), atol=1e-5)
            continue
        second = ["--second", row["sentence2"]] if "sentence2" in row else []
        alone = edgepeft("run", exported, "--task", answer["task"], row["sentence1"], *second, "--json")
        (mine,), (theirs,) = answer["predictions"], json.loads(alone.stdout)[0]["predictions"]
        assert (mine["task"], mine.get("label")) == (theirs["task"], theirs.get("label"))
        assert mine.get("score", mine.get("value")) == pytest.approx(theirs.get("score", theirs.get("value")), abs=2e-5)
    document = edgepeft("run", exported, "--input", file, "--task-column", "duty", "--batch-size", "3", "--json")
    assert json.loads(document.stdout) == found


@pytest.mark.parametrize("separator", [",", "\t"])
def test_run_reads_tasks_from_tables_where_an_empty_cell_is_none(exported, tmp_path, separator):
    file = tmp_path / ("rows.csv" if separator == "," else "rows.tsv")
    cells = [["task", "sentence1", "sentence2"], ["mood", "w7", ""], ["pair", "w7", "w8"], ["", "w9", ""]]
    file.write_text("".join(separator.join(row) + "\n" for row in cells))
    done = edgepeft("run", exported, "--input", file, "--task-column", "task", "--json")
    found = json.loads(done.stdout)
    assert [(answer["task"], answer.get("second")) for answer in found] == [
        ("mood", None),
        ("pair", "w8"),
        (None, None),
    ]
    assert [sorted(set(answer) & {"predictions", "embedding"}) for answer in found] == [
        ["predictions"],
        ["predictions"],
        ["embedding"],
    ]


def test_run_refuses_a_file_with_an_unknown_task_or_answers_the_other_rows(bundle, tmp_path):
    rows = [{"sentence1": "w7", "task": name} for name in ("mood", "moood", "pair", "score")]
    file = written(tmp_path / "rows.jsonl", rows)
    done = edgepeft("run", bundle, "--input", file, "--task-column", "task", "--batch-size", "1")
    assert (done.returncode, done.stdout) == (2, "")
    assert f"{file}:2: " in done.stderr and "Did you mean 'mood'" in done.stderr and "--skip-unknown" in done.stderr
    (bundle / "tasks" / "pair.onnx").write_bytes(b"damaged")
    done = edgepeft("run", bundle, "--input", file, "--task-column", "task", "--skip-unknown")
    found = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and "2 row(s) have no answer" in done.stderr
    assert ["error" in answer for answer in found] == [False, True, True, False]
    assert "Did you mean 'mood'" in found[1]["error"] and "pair.onnx" in found[2]["error"]
    assert found[0]["predictions"][0]["task"] == "mood" and found[3]["predictions"][0]["task"] == "score"


def test_an_export_of_nothing_is_refused_before_imports_that_take_seconds(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "edgepeft.training.exporting.bundle", None)
    for more, said in ((("--out", tmp_path / "out"), "give --delta"), (("--delta", tmp_path), "give --out")):
        done = edgepeft("export", "--backbone", tmp_path, *more)
        assert done.returncode == 2 and said in done.stderr


def test_run_imports_neither_torch_nor_transformers(exported):
    code = (
        "import sys, atexit\n"
        "from edgepeft.cli._main import app\n"
        f"sys.argv = ['edgepeft', 'run', {str(exported)!r}, 'w7']\n"
        "try:\n    app()\nexcept SystemExit as end:\n    assert not end.code\n"
        "found = {'torch', 'transformers', 'sklearn', 'scipy', 'onnx_ir'} & set(sys.modules)\n"
        "assert not found, found\n"
        "assert 'onnxruntime' in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_eval_scores_the_deployed_artefact(exported, tmp_path):
    answers = json.loads(edgepeft("run", exported, "--task", "mood", "--json", "w7", "w8", "w9", "w10").stdout)
    labels = [answer["predictions"][0]["label"] for answer in answers]
    other = {"no": "yes", "yes": "no"}
    rows = tmp_path / "rows.csv"
    wrong = [other[labels[0]], *labels[1:]]
    rows.write_text("sentence1,label\n" + "".join(f"w{7 + i},{label}\n" for i, label in enumerate(wrong)))
    done = edgepeft("eval", exported, "--task", "mood", "--data", rows, "--json")
    found = json.loads(done.stdout)
    head = {"schema": "edgepeft.eval/1", "bundle": str(exported), "task": "mood", "metric": "accuracy"}
    head |= {"averaged": "share of rows that are right", "score": 0.75, "rows": 4}
    assert {name: found[name] for name in head} == head
    assert found["confusion"][wrong[0]][labels[0]] == 1
    assert found["by_class"][labels[0]]["support"] == wrong.count(labels[0])
    first = found["worst"][0]  # the row whose label was turned round
    assert (first["row"], first["text"], first["label"], first["answer"]) == (
        f"{rows.name}:2",
        "w7",
        wrong[0],
        labels[0],
    )
    (tmp_path / "eval.json").write_text(done.stdout)
    edgepeft("report", tmp_path / "eval.json", "--out", tmp_path / "report")
    report = (tmp_path / "report" / "report.md").read_text()
    assert "accuracy 0.750 on 4 rows" in report and "| w7 |" in report


def test_eval_writes_the_confusion_matrix_where_it_is_asked_to(exported, tmp_path):
    rows = written(tmp_path / "rows.jsonl", [{"sentence1": f"w{7 + i}", "label": "yes"} for i in range(12)])
    done = edgepeft("eval", exported, "--task", "mood", "--data", rows, "--out", tmp_path / "out")
    shown = " ".join(done.stdout.split())
    assert done.returncode == 0 and "No row has the label no: left out." in shown
    right = int((tmp_path / "out" / "confusion.csv").read_text().splitlines()[-1].split(",")[-1])
    assert f"accuracy {right / 12:.3f} " in shown and f"mood: accuracy {right / 12:.3f} on 12 rows" in shown
    assert max(map(len, done.stdout.splitlines())) <= 80
    numbers = written(tmp_path / "numbers.jsonl", [{"sentence1": "w7", "label": 1.0}])
    refused = edgepeft("eval", exported, "--task", "score", "--data", numbers, "--out", tmp_path / "more")
    assert refused.returncode == 2 and "a regression has none; leave it out" in refused.stderr
    assert not (tmp_path / "more").exists()
    taken = edgepeft("eval", exported, "--task", "mood", "--data", rows, "--out", rows)
    assert taken.returncode == 2 and "is a file; an output folder is needed" in taken.stderr


def test_verify_tells_of_parity_and_exits_3_for_a_changed_file(bundle):
    good = edgepeft("verify", bundle, "--json")
    assert good.returncode == 0 and json.loads(good.stdout)["passed"]
    path = bundle / "tasks" / "mood.onnx"
    path.write_bytes(path.read_bytes()[:-1] + b"\x01")
    bad = process("verify", bundle, "--json")
    findings = {finding["subject"]: finding for finding in json.loads(bad.stdout)["findings"]}
    assert bad.returncode == 3 and not findings["mood"]["passed"] and findings["pair"]["passed"]
    assert "mood.onnx" in bad.stderr


def test_remove_and_add_an_exported_task(bundle, exported):
    assert edgepeft("remove", bundle, "mood").returncode == 0
    assert edgepeft("run", bundle, "--task", "mood", "w7").returncode == 2
    assert edgepeft("add", bundle, exported / "tasks" / "mood.onnx").returncode == 0
    assert edgepeft("run", bundle, "--task", "mood", "w7").returncode == 0


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (("run", "BUNDLE", "--task", "moood", "w7"), 2, "Did you mean 'mood'"),
        (("run", "BUNDLE", "--task", "mood"), 2, "give either texts or --input"),
        (("run", "BUNDLE", "w7", "--input", "x.jsonl"), 2, "give either"),
        (("run", "BUNDLE", "--task", "mood", "--input", "nothing.jsonl"), 2, "does not exist"),
        (("run", "BUNDLE", "--task", "pair", "a", "b", "--second", "c"), 2, "needs its own"),
        (("run", "BUNDLE", "w7", "--task-column", "task"), 2, "names a column of --input"),
        (("run", "BUNDLE", "--input", "COLUMNS", "--task", "mood", "--task-column", "klass"), 2, "in place of --task"),
        (("run", "BUNDLE", "--input", "COLUMNS", "--skip-unknown"), 2, "goes with --task-column"),
        (("run", "BUNDLE", "--input", "COLUMNS", "--task-column", "task"), 1, "no column task"),
        (("run", "BUNDLE", "--input", "LABELS", "--task-column", "task"), 2, "Found columns: sentence1, label;"),
        (("run", "nowhere", "w7"), 2, "not a bundle"),
        (("run", "BUNDLE", "w7", "--batch-size", "0"), 2, "batch-size"),
        (("run", "BUNDLE", "w7", "--threads", "0"), 2, "--threads"),
        (("serve", "BUNDLE", "--threads", "-1"), 2, "--threads"),
        (("remove", "BUNDLE", "nothing"), 2, "Known: mood, pair, score"),
        (("verify", "nowhere"), 2, "not a bundle: it is not there"),
        (("verify", "COLUMNS"), 2, "not a bundle: it is a file, and a bundle is a folder"),
        (("add", "BUNDLE", "nowhere.onnx"), 2, "nowhere.onnx"),
        (("add", "BUNDLE", "BUNDLE/tasks/mood.onnx"), 2, "already"),
        (("add", "BUNDLE", "BUNDLE"), 2, "delta.json"),
        (("eval", "BUNDLE", "--task", "mood", "--data", "LABELS"), 1, "no label 'maybe'"),
        (("eval", "BUNDLE", "--task", "mood", "--data", "COLUMNS"), 1, "no column label"),
        (
            ("eval", "BUNDLE", "--task", "mood", "--data", "YES", "--question", "idx"),
            1,
            "no column idx. Found columns: sentence1, label.",
        ),
        (("eval", "BUNDLE", "--task", "score", "--data", "LABELS"), 1, "finite number"),
        (("eval", "BUNDLE", "--task", "mood", "--data", "LABELS", "--metric", "pearson"), 2, "accuracy"),
        (("nothing",), 2, "No such command"),
        (("rnu",), 2, "Did you mean 'run'? See: "),
        (("run", "BUNDLE", "--nothing"), 2, "No such option"),
    ],
)
def test_what_is_wrong_is_said_and_the_exit_code_is_the_contracts(exported, tmp_path, arguments, code, message):
    (tmp_path / "labels.jsonl").write_text('{"sentence1": "w7", "label": "maybe"}\n')
    (tmp_path / "yes.jsonl").write_text('{"sentence1": "w7", "label": "yes"}\n')
    (tmp_path / "columns.csv").write_text("sentence1,klass\nw7,yes\n")
    places = {
        "BUNDLE": str(exported),
        "LABELS": str(tmp_path / "labels.jsonl"),
        "YES": str(tmp_path / "yes.jsonl"),
        "COLUMNS": str(tmp_path / "columns.csv"),
    }
    spelled = [
        argument.replace("BUNDLE", places["BUNDLE"]) if "BUNDLE" in argument else places.get(argument, argument)
        for argument in arguments
    ]
    done = edgepeft(*spelled)
    assert (done.returncode, message in done.stderr) == (code, True), done.stderr
    assert not done.stdout


def test_a_closed_standard_output_is_no_error(exported):
    command = [sys.executable, "-m", "edgepeft", "run", exported, "--task", "mood", "--no-cache", "w7"]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", *command], stderr=subprocess.PIPE, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_log_on_a_full_disk_costs_notes_and_no_answer(exported):
    arguments = ["run", exported, "--task", "mood", "--no-cache", ""]  # an empty text has a note
    plain = process(*arguments)
    assert "note: " in plain.stderr
    command = [sys.executable, "-c", ENTRY, *arguments]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=full, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, plain.stdout)


def test_what_is_done_is_no_failure_where_its_report_meets_a_full_disk(monkeypatch):
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stderr", full)
        say("in force now")
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_a_reader_that_leaves_gets_no_traceback(exported, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"sentence1": "w7"}\n' * 3000)
    command = [sys.executable, "-c", ENTRY, "run", str(exported), "--task", "mood", "--input", str(rows)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        process.stdout.readline()
        process.stdout.close()
        assert "Traceback" not in process.stderr.read()


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (OSError(errno.EIO, "Input/output error", "/mnt/card"), "error: /mnt/card: Input/output error. "),
        (OSError(errno.ENOSPC, "No space left on device"), "error: no space left on the disk. "),
        (TimeoutError(), "error: TimeoutError. "),
    ],
)
def test_what_the_system_refuses_is_one_line(capsys, error, line):
    def refused(standalone_mode):
        raise error

    with pytest.raises(SystemExit) as end:
        main(refused)
    printed = capsys.readouterr().err
    assert (end.value.code, printed.startswith(line), printed.count("\n")) == (1, True, 1), printed


@pytest.mark.parametrize(
    ("arguments", "option", "known"),
    [
        (("export", "--backbone", "b", "--weights", "foo"), "--weights", "'fp32', 'int8'"),
        (
            ("train", "--backbone", "b", "--data", "d", "--task", "t", "--out", "o", "--device", "foo"),
            "--device",
            "'auto', ",
        ),
    ],
)
def test_an_unknown_choice_is_told_with_those_that_are_known(arguments, option, known):
    done = edgepeft(*arguments)
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: Invalid value for '{option}': 'foo' is not one of {known}")


def test_all_options_that_are_missing_are_named_at_once(monkeypatch, capsys):
    def said(*arguments):
        monkeypatch.setattr(sys, "argv", ["edgepeft", "train", *arguments])
        with pytest.raises(SystemExit) as end:
            main()
        assert end.value.code == 2
        return capsys.readouterr().err.partition(" See: ")[0]

    assert said() == "error: Missing options '--data', '--backbone', '--task', '--out'."
    assert said("--data=rows.csv", "--out", "mood") == "error: Missing options '--backbone', '--task'."
    assert said("--data", "rows.csv", "--out", "mood", "--task", "m") == "error: Missing option '--backbone'."


def test_a_message_is_one_line_where_no_terminal_reads_it(capsys):
    message = "note: " + "what is said is found by line in a log, " * 10
    messages().print(message)
    assert capsys.readouterr().err == f"{message}\n"


def test_of_very_many_classes_the_worst_with_most_rows_are_shown_and_the_rest_counted(capsys):
    perfect = {"precision": 1.0, "recall": 1.0, "f1": 1.0, "support": 1}
    classes = {f"c{i}": perfect for i in range(9_998)}
    missed = {"precision": 0.0, "recall": 0.0, "f1": 0.0}
    classes |= {"absent": {**missed, "support": 0}, "missed": {**missed, "support": 7}}
    worst = [{"row": "many.csv:2", "label": "missed", "answer": "c1", "loss": 9.0}]
    show_errors({"by_class": classes, "confusion": {"missed": {"c1": 7}}, "worst": worst})
    shown = capsys.readouterr().out
    lines = [line.split() for line in shown.splitlines()]
    firsts = [line[0] for line in lines if line]
    assert firsts[firsts.index("label") + 2 :][:2] == ["missed", "c0"]
    assert sum(first.startswith("c") for first in firsts) == 29
    assert "The worst of 9,999; all of them: --json, or edgepeft report." in shown
    assert "No row has the label absent: left out." in shown


def swallowed(app):
    """What options and verbs of an app say of themselves and its --help does not show."""
    flat = str.maketrans(dict.fromkeys("│╭╮╰╯─\n", " "))
    verbs = typer.main.get_command(app)
    for name in verbs.list_commands(None):
        verb = verbs.get_command(None, name)
        shown = " ".join(CliRunner().invoke(app, [name, "--help"], prog_name="").output.translate(flat).split())
        for said in (verb.help, *(getattr(each, "help", None) for each in verb.params)):
            if " ".join((said or "").split()) not in shown:
                yield name, said


def test_every_help_shows_all_that_it_says(monkeypatch):
    """Rich takes words in brackets for its own markup: ``sentence1[,sentence2]`` lost half of itself."""
    monkeypatch.setattr("typer.rich_utils.MAX_WIDTH", 1000)
    monkeypatch.setenv("COLUMNS", "1000")
    planted = typer.Typer()

    @planted.command()
    def other():
        """Do what needs [brackets] and what does not."""

    @planted.command()
    def verb(data: Annotated[str, typer.Option(help="A csv of sentence1[sentence2,]label.")] = ""):
        """Take rows."""

    assert [name for name, _ in swallowed(planted)] == ["other", "verb"]
    assert list(swallowed(app)) == []
