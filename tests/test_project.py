"""Files that must agree with each other: README, Makefile, constraints, pyproject, changelog."""

from __future__ import annotations

import importlib
import os
import pkgutil
import re
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from typer.main import get_command

import edgepeft
from edgepeft.common.resources import package_data

ROOT = Path(__file__).resolve().parent.parent
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
DOCUMENTS = ("README.md", "CONTRIBUTING.md", "docs/start.md")
MODULES = sorted(
    name
    for _, name, _ in pkgutil.walk_packages(edgepeft.__path__, "edgepeft.")
    if not name.rsplit(".", 1)[-1].startswith("__")
)


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def requirements(*extras: str) -> list[Requirement]:
    project = PYPROJECT["project"]
    lines = [*project["dependencies"], *(x for e in extras for x in project["optional-dependencies"][e])]
    return [Requirement(line) for line in lines]


def pins(name: str) -> dict[str, str]:
    found = {}
    for line in read(name).splitlines():
        if line and not line.startswith("#"):
            pin = Requirement(line.split(" #")[0])
            if pin.marker is None or pin.marker.evaluate():
                found[canonicalize_name(pin.name)] = str(pin.specifier).removeprefix("==")
    return found


@pytest.mark.parametrize("constraints", ["constraints.txt", "constraints-latest.txt"])
def test_constraints_pin_every_requirement_to_a_version_that_it_allows(constraints):
    pinned = pins(constraints)
    for wanted in requirements("train", "dev", "serve", "fleet"):
        name = canonicalize_name(wanted.name)
        if wanted.marker is None or wanted.marker.evaluate():
            assert wanted.specifier.contains(pinned[name]), f"{wanted} against {pinned[name]}"


@pytest.mark.parametrize(
    ("lock", "extras"),
    [("docker/runtime.lock", ("serve", "fleet")), ("docker/train.lock", ("train", "serve", "fleet"))],
)
@pytest.mark.parametrize("machine", ["aarch64", "x86_64"])
def test_the_images_install_what_the_constraints_pin_and_nothing_without_a_hash(machine, lock, extras):
    where = {"platform_machine": machine, "sys_platform": "linux"}

    def kept(lines):
        made = [Requirement(line) for line in lines]
        return {canonicalize_name(r.name): str(r.specifier) for r in made if not r.marker or r.marker.evaluate(where)}

    blocks = [line.split(" --hash=sha256:") for line in read(lock).replace("\\\n", " ").splitlines()]
    assert all(len(hashes) and all(len(h.strip()) == 64 for h in hashes) for _, *hashes in blocks)
    locked = kept(requirement for requirement, *_ in blocks)
    pinned = kept(
        line.split(" #")[0] for line in read("constraints.txt").splitlines() if line and not line.startswith("#")
    )
    versions = {name: version.removesuffix("+cpu") for name, version in locked.items()}  # of an index of CPU wheels
    assert {name: pinned[name] for name in locked if name in pinned} == {k: versions[k] for k in locked if k in pinned}
    wanted = [r for r in requirements(*extras) if not r.marker or r.marker.evaluate({**where, "extra": ""})]
    assert {canonicalize_name(r.name) for r in wanted} <= set(locked)


@pytest.mark.parametrize("name", ["runtime", "train"])
def test_dockerignore_lets_in_what_a_dockerfile_copies(name):
    kept = [line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")]
    copied = re.findall(r"^COPY (?!--from)(.*) \S+$", read(f"docker/{name}.Dockerfile"), re.MULTILINE)
    sources = [source.rstrip("*") for line in copied for source in line.split()]
    assert f"docker/{name}.lock" in sources
    assert [source for source in sources if source not in kept] == []


def test_what_we_ask_others_to_run_is_pinned():
    """Base images by digest, packages by lock, other actions by revision, and edgepeft by no index's name."""
    bases = [
        line for path in ROOT.glob("docker/*.Dockerfile") for line in read(path).splitlines() if "ARG BASE=" in line
    ]
    images = [*bases, *re.findall(r"image: +(?!edgepeft:)(.*)", read("docs/ci/gitlab.yml"))]
    assert len(images) == 3
    assert len({re.search(r"@(sha256:[0-9a-f]{64})$", image)[1] for image in images}) == 1
    for path in ROOT.glob("docker/*.Dockerfile"):
        assert all("$" in base for base in re.findall(r"^FROM (\S+)", read(path), re.MULTILINE))
        installs = re.findall(r"pip --python \S+ install (.*?) \\\n", read(path))
        assert installs and all("--require-hashes" in each or "--no-deps ." in each for each in installs)
    actions = [ROOT / "action.yml", *ROOT.glob("docs/ci/*.yml")]
    used = [name for path in actions for name in re.findall(r"uses: (\S+)", read(path)) if name != "./"]
    assert used and all(re.search(r"@[0-9a-f]{40}$", name) for name in used)
    pages = [*actions, ROOT / "README.md", *ROOT.glob("docs/**/*.md"), *ROOT.glob("docker/*.md")]
    assert not [path for path in pages if re.search(r"pip install [^\n|`]*[ '\"]edgepeft(\[|['\" \n])", read(path))]


@pytest.mark.parametrize(
    ("install", "asked"),
    [
        (
            "self",
            ["--only-binary=:all: --require-hashes -r HERE/docker/runtime.lock", "--no-deps --no-build-isolation HERE"],
        ),
        ("self[train]", ["-c HERE/constraints.txt HERE[train]"]),
        (".[train]", [".[train]"]),
    ],
)
def test_the_action_installs_its_own_revision(install, asked, tmp_path):
    step = yaml.safe_load(read("action.yml"))["runs"]["steps"][0]
    assert yaml.safe_load(read("action.yml"))["inputs"]["install"]["default"] == "self"
    assert step["env"]["ACTION"] == "${{ github.action_path }}"
    (tmp_path / "python").write_text('#!/bin/sh\nshift 3; echo "$@"\n')  # of python -m pip install
    (tmp_path / "python").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "INSTALL": install, "ACTION": "HERE"}
    done = subprocess.run(
        ["bash", "-e", "-c", step["run"]], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.splitlines() == asked


def test_the_two_constraints_are_the_two_ends_of_the_range_of_transformers():
    assert pins("constraints.txt")["transformers"] == "4.57.6"
    assert pins("constraints-latest.txt")["transformers"].startswith("5.")


def test_makefile_pyproject_and_code_name_the_same_data_packages():
    demo = pytest.importorskip("edgepeft.training.demo")
    of_code = {Requirement(line) for line in demo.PACKAGES.values()}
    of_extra = {Requirement(x) for x in PYPROJECT["project"]["optional-dependencies"]["demo"] if "[" not in x}
    of_makefile = re.search(r"^DEMO\s*:=(.*)$", read("Makefile"), re.MULTILINE).group(1).split()
    assert of_code == of_extra
    assert {r.name for r in of_code} == set(of_makefile)
    assert all(pins("constraints.txt")[r.name] in str(r.specifier) for r in of_code)


def verbs() -> set[str]:
    from edgepeft.cli._main import app

    return set(get_command(app).list_commands(None))


@pytest.mark.parametrize("document", [*DOCUMENTS, "docs/bundle.md", "docs/data.md", "docs/methods.md"])
def test_every_command_that_a_document_shows_exists(document):
    shown = set(re.findall(r"(?:^    |`)edgepeft ([a-z]+)", read(document), re.MULTILINE))
    assert shown, document
    assert shown <= verbs()


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_make_target_that_a_document_shows_exists(document):
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    shown = {
        t for line in re.findall(r"(?:^    |`)make ([a-z -]+)", read(document), re.MULTILINE) for t in line.split()
    }
    assert shown <= targets


@pytest.mark.parametrize("document", DOCUMENTS)
def test_every_local_link_leads_to_a_file(document):
    links = re.findall(r"\]\((?!http)([^)#]+)\)", read(document))
    assert [link for link in links if not ((ROOT / document).parent / link).exists()] == []


def test_every_file_that_the_architecture_names_is_there():
    named = re.findall(r"`([a-z_/]+(?:\.py|/))`", read("docs/architecture.md"))
    assert len(named) > 20 and [name for name in named if not (ROOT / "edgepeft" / name).exists()] == []


def test_every_function_and_class_that_the_architecture_names_is_defined():
    prose = re.sub(r"^    .*$", "", read("docs/architecture.md"), flags=re.MULTILINE)  # without code
    named = re.findall(r"`([A-Za-z_]\w*(?:\.[A-Za-z_]\w*)?)`", prose)
    source = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "edgepeft").rglob("*.py"))
    defined = {*re.findall(r"\b(?:def|class) (\w+)", source)}
    defined |= {*re.findall(r"^ *(?:self\.)?(\w+)(?:: [^=\n]+)? = ", source, re.MULTILINE)}
    defined |= {path.stem for path in (ROOT / "edgepeft").rglob("*")}
    others = {"edgepeft", "EDGEPEFT_CACHE", "tried", "json", "ms"}
    assert len(named) > 150 and [name for name in named if not {*name.split(".")} <= defined | others] == []


def test_every_file_that_contributing_names_is_there():
    named = re.findall(r"`([a-z0-9_/]+(?:\.py|/))`", read("CONTRIBUTING.md"))
    package = ROOT / "edgepeft"
    assert [name for name in named if not (ROOT / name).exists() and not any(package.rglob(name))] == []


def test_the_front_door_stays_small():
    assert len(read("README.md").splitlines()) <= 150
    navigation = re.findall(r"^ +- (\S+\.md)$", read("mkdocs.yml"), re.MULTILINE)
    assert len(navigation) == len(set(navigation)) <= 21


def test_the_changelog_opens_with_this_version():
    assert re.search(r"^## ([\d.]+)", read("CHANGELOG.md"), re.MULTILINE).group(1) == edgepeft.__version__


def test_the_list_of_texts_for_verification_has_64_different_ones_of_mixed_length():
    texts = package_data("verify_texts.txt").read_text(encoding="utf-8").splitlines()
    assert len(set(texts)) == len(texts) == 64
    n_words = [len(text.split()) for text in texts]
    assert min(n_words) == 1
    assert max(n_words) > 250
    assert any(not text.isascii() for text in texts)


def skip_where_serving_is_not_installed(name):
    if name.startswith("edgepeft.serve.") and not all(map(find_spec, ("httptools", "prometheus_client", "uvicorn"))):
        pytest.skip("serving is not installed: pip install edgepeft[serve]")


@pytest.mark.parametrize("name", MODULES)
def test_every_module_says_what_it_is(name):
    skip_where_serving_is_not_installed(name)
    assert (importlib.import_module(name).__doc__ or "").strip()


@pytest.mark.parametrize("statement", ["import edgepeft", "import edgepeft.cli._main"])
def test_importing_loads_nothing_heavy(statement):
    heavy = "{'torch', 'transformers', 'onnxruntime', 'onnx', 'sklearn', 'scipy', 'matplotlib'}"
    code = f"import sys; {statement}; print(sorted(set(sys.modules) & {heavy}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.strip() == "[]"
