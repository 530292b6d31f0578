"""A file from elsewhere is counted before it is parsed: its bytes, its parts, how deep they lie, how long its keys are."""

import json
import os
import tomllib

import pytest

from edgepeft.common import resources
from edgepeft.common.resources import bytes_at, json_at, json_rows, toml_at


def of(path, content):
    path.write_bytes(content)
    return path


def test_a_file_has_its_bytes_and_no_more_are_read_of_a_sparse_one(tmp_path, monkeypatch):
    path = of(tmp_path / "a", b"123")
    assert bytes_at(path, most=3) == b"123"
    os.truncate(path, 3 * 10**9)
    with pytest.raises(OSError, match="more than 3 bytes"):
        bytes_at(path, most=3)


def test_a_fifo_keeps_nobody_waiting(tmp_path):
    os.mkfifo(tmp_path / "a")
    with pytest.raises(OSError, match="no regular file"):
        bytes_at(tmp_path / "a")


@pytest.mark.parametrize("part", ["[]", "{}", "0"])
def test_parts_are_counted_before_json_is_parsed(tmp_path, monkeypatch, part):
    path = of(tmp_path / "a.json", f"[{','.join([part] * 40)}]".encode())
    monkeypatch.setattr(resources, "_MAX_PARTS", 100)
    assert json_at(path) == json.loads(path.read_bytes())
    monkeypatch.setattr(resources, "_MAX_PARTS", 39)
    monkeypatch.setattr(json, "loads", lambda _: pytest.fail("it was parsed"))
    with pytest.raises(OSError, match="more than 39 lists"):
        json_at(path)


def test_what_lies_too_deep_or_names_a_nul_is_a_value_error(tmp_path):
    with pytest.raises(ValueError, match="too deep"):
        json_at(of(tmp_path / "a.json", b"[" * 100_000 + b"]" * 100_000))
    with pytest.raises(ValueError, match="too deep"):
        toml_at(of(tmp_path / "a.toml", b"a = " + b"[" * 100_000 + b"]" * 100_000))
    with pytest.raises(ValueError, match="NUL"):
        json_at(of(tmp_path / "a.json", rb'{"path": "a\u0000b"}'), names_files=True)
    with pytest.raises(ValueError, match="NUL"):
        toml_at(of(tmp_path / "a.toml", rb'path = "a\u0000b"'))


def test_an_object_with_two_values_of_one_key_is_a_value_error_however_deep_it_lies(tmp_path):
    assert json_rows('{"a": {"b": 1}, "c": {"b": 2}}') == {"a": {"b": 1}, "c": {"b": 2}}
    with pytest.raises(ValueError, match="the key 'b' twice, with two values"):
        json_rows('[{"a": {"b": 1, "c": 2, "b": 3}}]')
    assert json_rows('{"b": [1], "b": [1]}') == {"b": [1]}  # either is right
    # A config's last value counts, as transformers reads it.
    assert json_at(of(tmp_path / "a.json", b'{"b": 1, "b": 2}')) == {"b": 2}


def test_a_byte_order_mark_as_windows_writes_it_is_no_part_of_a_document(tmp_path):
    for path, read in ((tmp_path / "a.toml", toml_at), (tmp_path / "a.json", json_at)):
        assert read(of(path, {".toml": b"\xef\xbb\xbfa = 1\r\n", ".json": b'\xef\xbb\xbf{"a": 1}'}[path.suffix])) == {
            "a": 1
        }


@pytest.mark.parametrize("key", ["a.", '"a b" . ', "'a'."])
def test_a_key_of_toml_has_a_bounded_number_of_parts(tmp_path, monkeypatch, key):
    path = of(tmp_path / "a.toml", f"{key * 30}a = 1".encode())
    assert toml_at(path) == tomllib.loads(path.read_text())
    monkeypatch.setattr(tomllib, "loads", lambda *_, **__: pytest.fail("it was parsed"))
    with pytest.raises(ValueError, match="more than 32 parts"):
        toml_at(of(path, f"{key * 33}a = 1".encode()))
    with pytest.raises(OSError, match="more than 524,288 bytes"):
        toml_at(of(path, b"#" * (1 << 20)))
