"""``python -m edgepeft``: the command, where its script is not on the PATH."""

from edgepeft.cli._main import main

if __name__ == "__main__":
    main()
