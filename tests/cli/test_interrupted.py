"""Ctrl-C is one word and exit code 130, whenever it comes."""

import sys
from types import ModuleType

import pytest

from edgepeft.__main__ import main
from edgepeft.cli import _main


class Importing(ModuleType):
    """A module whose import Ctrl-C interrupts."""

    def __getattr__(self, name):
        raise KeyboardInterrupt


def half_imported():
    """As torch, which looks at a module that it is importing while the interruption passes."""
    try:
        raise KeyboardInterrupt
    except sys.nothing:
        pass


def ended():
    with pytest.raises(SystemExit) as end:
        main()
    return end.value.code


def test_while_the_command_is_imported(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "edgepeft.cli._main", Importing("edgepeft.cli._main"))
    assert (ended(), capsys.readouterr().err) == (130, "interrupted\n")


def test_where_a_library_makes_another_error_of_it(monkeypatch, capsys):
    monkeypatch.setattr(_main, "main", half_imported)
    assert (ended(), capsys.readouterr().err) == (130, "interrupted\n")


def test_other_errors_pass(monkeypatch):
    monkeypatch.setattr(_main, "main", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        main()
