"""Verify and sign a bundle; `edgepeft verify --key` and `edgepeft serve --require-signature` check it."""

from pathlib import Path
from typing import Annotated

from typer import Option

from edgepeft.cli._options import BundleFolder
from edgepeft.common.progress import say

PANEL = "Deploy"


def command(
    bundle: BundleFolder, key: Annotated[Path, Option(help="Ed25519 private key in PEM, as openssl makes it.")]
) -> None:
    from edgepeft.deploy.signature import sign_bundle, unsigned_files

    path = sign_bundle(bundle, key)
    say(f"signed: {path}. Whatever changes the bundle (add, remove, tune) needs it signed again.")
    if others := unsigned_files(bundle):
        say(f"not covered, and not read for answers: {', '.join(others)}.")
