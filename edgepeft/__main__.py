"""``python -m edgepeft``, and the script ``edgepeft``: the command, whose import Ctrl-C may interrupt as well."""

import sys


def main() -> None:
    """Import the command, which takes a moment, and run it."""
    try:
        from edgepeft.cli._main import main as command

        command()
    except BaseException as error:
        behind: BaseException | None = error  # of a library's import that Ctrl-C cuts short, torch makes its own error
        while behind is not None and not isinstance(behind, KeyboardInterrupt):
            behind = behind.__cause__ or behind.__context__
        if behind is None:
            raise
        print("interrupted", file=sys.stderr)
        sys.exit(130)


if __name__ == "__main__":
    main()
