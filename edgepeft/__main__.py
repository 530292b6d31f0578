"""``python -m edgepeft``, and the script ``edgepeft``: the command, whose import Ctrl-C may interrupt as well."""

import sys
from collections.abc import Iterator


def main() -> None:
    """Import the command, which takes a moment, and run it."""
    try:
        from edgepeft.cli._main import main as command

        command()
    except BaseException as error:
        # Of a library's import that Ctrl-C cuts short, torch makes an error of its own.
        if not any(isinstance(each, KeyboardInterrupt) for each in _behind(error)):
            raise
        print("interrupted", file=sys.stderr)
        sys.exit(130)


def _behind(error: BaseException | None) -> Iterator[BaseException]:
    """The error, what it was made of, and so on."""
    while error is not None:
        yield error
        error = error.__cause__ or error.__context__


if __name__ == "__main__":
    main()
