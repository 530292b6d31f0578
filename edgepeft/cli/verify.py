"""Check a bundle's hashes and graphs, and replay each task's check file."""

from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Option

from edgepeft.cli._options import BundleFolder
from edgepeft.cli._output import print_json, table_console
from edgepeft.common.errors import UsageError, VerificationFailed
from edgepeft.common.progress import stages

PANEL = "Deploy"


def command(
    bundle: BundleFolder,
    key: Annotated[Path | None, Option(metavar="PUBLIC_KEY", help="Check the signature by this Ed25519 key.")] = None,
    allow_older: Annotated[bool, Option("--allow-older", help="With --key: take an older state than known.")] = False,
    as_json: Annotated[bool, Option("--json", help="Print the findings as JSON.")] = False,
) -> None:
    from edgepeft.bundle.manifest import Manifest
    from edgepeft.deploy.signature import check_signature
    from edgepeft.deploy.verify import audit

    if allow_older and key is None:
        raise UsageError("--allow-older is about signatures; give --key.")
    if key is not None:
        check_signature(bundle, key, allow_older=allow_older)
    manifest = Manifest.read(bundle)
    with stages(1 + len(manifest.tasks) + len(manifest.templates)) as stage:
        findings = audit(bundle, stage)
    failed = [finding for finding in findings if finding.problem]
    if as_json:
        rows = [
            {
                "subject": finding.subject,
                "passed": not finding.problem,
                "problem": finding.problem or None,
                "verification": finding.verification and finding.verification.model_dump(),
            }
            for finding in findings
        ]
        print_json({"bundle": str(bundle), "passed": not failed, "findings": rows})
    else:
        table = Table("checked", "largest logit difference", "decisions equal", "result")
        for finding in findings:
            result = finding.verification
            difference = agreement = ""
            if result is not None:
                bound = "" if result.tolerance is None else f" of {result.tolerance:.0e}"
                difference = f"{result.max_abs_difference:.1e}{bound}"
                if result.text is not None and result.kl_tolerance is not None:
                    difference += f"; KL {result.text.kl:.1e} of {result.kl_tolerance:.1e}"
                agreement = f"{result.agreement:.0%} of {result.rows - result.undecided}"
            table.add_row(finding.subject, difference, agreement, "failed" if finding.problem else "passed")
        table_console().print(table)
    if failed:
        raise VerificationFailed("; ".join(f"{finding.subject}: {finding.problem}" for finding in failed))
