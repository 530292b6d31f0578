"""The module as an npm package: what is packed answers a site in Node, and TypeScript knows its types."""

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from edgepeft.bundle.bundle import Bundle
from edgepeft.runtime.runtime import Runtime
from edgepeft.web.site import write_site

BUILD = Path(__file__).parents[2] / "build" / "web"
MODULES = BUILD / "node_modules"
PACKAGE = "edgepeft-web"

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not MODULES.is_dir(), reason="needs npm's packages: make test-javascript"),
]
ANSWER = """
import { Bundle } from "edgepeft-web";
const bundle = await Bundle.open(process.argv[2]);
const answers = { mood: await bundle.predict("mood", "w7 w9"), ...(await bundle.predict(["score"], ["w7 w9"])) };
process.stdout.write(JSON.stringify(answers), () => process.exit(0));
"""
TYPED = """
import { Bundle } from "edgepeft-web";
import { tune } from "edgepeft-web/tuning";
const bundle = await Bundle.open("https://example.org/site/", { sessions: 1 });
const one: string = (await bundle.predict("mood", ["a", "b"]))[0].task;
const several = await bundle.predict(["mood"], [["a", "b"]]);
const other: string | undefined = several.mood[0].note;
export { one, other, tune };
"""
MISTAKEN = TYPED.replace('["a", "b"]))[0].task', '["a", "b"])).mood')


@pytest.fixture
def project(tmp_path):
    """A folder that has the package as npm installs it."""
    packed = subprocess.run(
        ["npm", "pack", "--json", "--pack-destination", str(tmp_path)],
        cwd=BUILD,
        capture_output=True,
        text=True,
        check=True,
    )
    (about,) = json.loads(packed.stdout[packed.stdout.index("[\n") :])
    names = {file["path"] for file in about["files"]}
    assert {"package.json", "README.md", "LICENSE", "module/index.js", "types/index.d.ts"} <= names
    assert not [name for name in names if name.startswith(("site/", "test", "licences"))]
    shutil.unpack_archive(tmp_path / about["filename"], tmp_path / "unpacked")
    modules = tmp_path / "node_modules"
    modules.mkdir()
    for package in MODULES.iterdir():
        (modules / package.name).symlink_to(package)
    (tmp_path / "unpacked" / "package").rename(modules / PACKAGE)
    (tmp_path / "package.json").write_text('{"type": "module"}')
    return tmp_path


def test_what_is_packed_answers_in_node(exported, project):
    write_site(Bundle(exported), project / "site", libraries=MODULES)
    (project / "main.mjs").write_text(ANSWER)
    command = ["node", "main.mjs", f"{(project / 'site').as_uri()}/"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr[-2000:]
    with Runtime(exported, cache=False) as runtime:
        for task, (found,) in json.loads(done.stdout).items():
            expected = runtime.predict(task, "w7 w9")[0].as_json()
            assert found.keys() == expected.keys()
            key = "value" if task == "score" else "score"
            assert found[key] == pytest.approx(expected[key], abs=1e-4)


@pytest.mark.parametrize(("source", "right"), [(TYPED, True), (MISTAKEN, False)])
def test_typescript_knows_its_types(project, source, right):
    (project / "main.mts").write_text(source)
    options = [
        "--noEmit",
        "--strict",
        "--module",
        "nodenext",
        "--target",
        "es2022",
        "--lib",
        "es2023,dom",
        "--types",
        "",
    ]
    command = ["node_modules/.bin/tsc", *options, "main.mts"]
    done = subprocess.run(command, cwd=project, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode == 0) == right, done.stdout
    assert right or "main.mts" in done.stdout
