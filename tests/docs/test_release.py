"""What is released: one version everywhere, a changelog by its rule, a lock with hashes, pages that are current."""

import re
import shutil
import subprocess
import tarfile
import tomllib
import zipfile
from importlib.metadata import PackageNotFoundError, requires
from itertools import pairwise
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version
from tools.api_page import PAGE, api_page
from tools.check_dist import ADDED, METADATA, check

import groupwise as gw
from tests.docs.test_pages import HOME

PROJECT = tomllib.loads((HOME / "pyproject.toml").read_text())["project"]
HEADING = re.compile(r"^## (\d+\.\d+\.\d+) \((unreleased|\d{4}-\d\d-\d\d)\)$")
PIN = re.compile(r"^([A-Za-z0-9._-]+)==(\S+?)(?: \\)?$", re.MULTILINE)
LOCK = (HOME / "requirements.lock").read_text()
LOCKED = {canonicalize_name(name): Version(version) for name, version in PIN.findall(LOCK)}
LINUX = {"platform_system": "Linux", "sys_platform": "linux", "platform_machine": "x86_64", "extra": ""}


def test_the_version_is_the_same_everywhere() -> None:
    version = PROJECT["version"]
    cited = yaml.safe_load((HOME / "CITATION.cff").read_text())["version"]
    first = HEADING.match((HOME / "CHANGELOG.md").read_text().splitlines()[2])
    assert first and [gw.__version__, cited, first[1]] == [version] * 3


def test_the_changelog_has_the_newest_version_first_and_only_that_one_unreleased() -> None:
    titles = [line for line in (HOME / "CHANGELOG.md").read_text().splitlines() if line.startswith("## ")]
    found = [HEADING.match(title) for title in titles]
    assert all(found), titles
    versions = [Version(match[1]) for match in found if match]
    assert versions == sorted(set(versions), reverse=True)
    assert "unreleased" not in [match[2] for match in found[1:] if match]


def test_the_page_of_the_api_is_that_of_the_package() -> None:
    page = PAGE.read_text("utf-8")
    assert page == api_page(), "run: make docs"
    assert [name for name in gw.__all__ if name != "__version__" and f"`gw.{name}`" not in page.replace("@", "")] == []


def test_the_lock_has_what_the_project_requires_in_the_versions_of_the_constraints() -> None:
    build = tomllib.loads((HOME / "pyproject.toml").read_text())["build-system"]["requires"]
    for requirement in map(Requirement, [*PROJECT["dependencies"], *build]):
        assert LOCKED[canonicalize_name(requirement.name)] in requirement.specifier, requirement
    pins = {canonicalize_name(name): Version(v) for name, v in PIN.findall((HOME / "constraints.txt").read_text())}
    assert {name: v for name, v in LOCKED.items() if v != pins.get(name, v)} == {}, "run: make lock"


def test_the_lock_is_complete() -> None:
    """The requirements of each locked package that is installed here are locked, too."""
    for name in LOCKED:
        try:
            needed = [Requirement(text) for text in requires(name) or []]
        except PackageNotFoundError:  # packages of CUDA, and of the build
            continue
        for requirement in needed:
            if requirement.marker is None or requirement.marker.evaluate(LINUX):
                assert canonicalize_name(requirement.name) in LOCKED, f"{name} needs {requirement}; run: make lock"


def test_each_line_of_the_lock_is_a_pin_or_a_hash_and_names_no_host() -> None:
    lines = [line for line in LOCK.splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"\S+==\S+ \\|    --hash=sha256:[0-9a-f]{64}( \\)?", line) for line in lines)
    assert "://" not in LOCK and len(LOCKED) == LOCK.count("==")
    assert all(after.startswith("    --hash") for line, after in pairwise(lines) if "==" in line)


def test_the_page_of_versions_has_the_ranges_of_the_project() -> None:
    """The oldest version that was tried is the lower bound, so that nothing untried is promised."""
    table = (HOME / "docs/versions.md").read_text().partition("| package |")[2].partition("\n\n")[0]
    rows = {
        name: (oldest, newest) for name, oldest, newest in re.findall(r"^\| (\S+) \| (\S+) \| (\S+) \|", table, re.M)
    }
    rows.pop("---", None)
    requirements = {item.name: item.specifier for item in map(Requirement, PROJECT["dependencies"])}
    assert rows.keys() == requirements.keys()
    for name, (oldest, newest) in rows.items():
        bounds = {spec.operator: Version(spec.version) for spec in requirements[name]}
        assert bounds[">="] == Version(oldest) and Version(newest) in requirements[name], name
        assert LOCKED[canonicalize_name(name)] <= Version(newest), name


def test_the_page_of_versions_has_the_oldest_and_the_run_versions_of_quantization_and_pictures() -> None:
    page = " ".join((HOME / "docs/versions.md").read_text().split())
    ran = dict(re.findall(r"^(\S+)==(\S+)$", (HOME / "constraints.txt").read_text(), re.M))
    for extra, name in (("quantization", "bitsandbytes"), ("pictures", "Pillow")):
        items = map(Requirement, PROJECT["optional-dependencies"][extra])
        (least,) = [spec.version for item in items if item.name == name.lower() for spec in item.specifier]
        assert f"`{extra}` needs {name} {least} and ran with {ran[name.lower()]}" in page


def test_workflows_run_commands_of_the_makefile_and_name_what_was_not_tried() -> None:
    targets = set(re.findall(r"^([\w-]+):", (HOME / "Makefile").read_text(), re.M))
    files = sorted((HOME / ".github/workflows").glob("*.yml"))
    assert [path.stem for path in files] == ["lint", "site", "suite", "wheel"]
    for path in files:
        text = path.read_text()
        ran = set(re.findall(r"run: make ([\w-]+)$", text.replace("test-${{ matrix.end }}", "test-oldest"), re.M))
        assert ran and ran <= targets, path
        assert yaml.safe_load(text)["permissions"] == {"contents": "read"}
    rows = yaml.safe_load((HOME / ".github/workflows/suite.yml").read_text())["jobs"]["suite"]["strategy"]["matrix"]
    page = (HOME / "docs/versions.md").read_text()
    for row in rows["include"]:
        python = f"Python {row['python']} on {'macOS' if 'macos' in row['os'] else 'Linux'}"
        assert re.search(rf"^\| {python} \| {'run' if row['tried'] else 'not run'}\b", page, re.M), python


def test_a_container_gets_the_files_that_its_recipe_copies() -> None:
    lines = (HOME / "Dockerfile").read_text().splitlines()
    copied = {name for line in lines if line.startswith("COPY ") for name in line.split()[1:-1]}
    kept = {line[1:] for line in (HOME / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    assert copied == kept and all((HOME / name).exists() for name in copied)


def test_a_container_for_cpus_leaves_out_torch_and_what_cuda_needs(tmp_path: Path) -> None:
    """The line of the Dockerfile is run on the lock: every other pin keeps its hashes."""
    text = (HOME / "Dockerfile").read_text()
    (command,) = re.findall(r"sed -i -E '.*' requirements\.lock", text)
    (pattern,) = re.findall(r"grep -o '(.*?)' requirements\.lock", text)
    shutil.copy(HOME / "requirements.lock", tmp_path)
    subprocess.run(command, shell=True, cwd=tmp_path, check=True)
    kept = (tmp_path / "requirements.lock").read_text()
    of_cuda = {name for name in LOCKED if name.startswith(("nvidia-", "cuda-"))}
    assert {canonicalize_name(name) for name, _ in PIN.findall(kept)} == LOCKED.keys() - of_cuda - {"torch", "triton"}
    lines = [line for line in LOCK.splitlines() if line in set(kept.splitlines())]
    assert kept.splitlines() == lines and all(after.startswith("    ") for x, after in pairwise(lines) if "==" in x)
    assert re.findall(pattern, LOCK, re.MULTILINE) == [f"torch=={LOCKED['torch']}"]


@pytest.fixture
def released(tmp_path: Path) -> tuple[Path, Path]:
    """A small repository and the distributions that have its files."""
    home, dist = tmp_path / "home", tmp_path / "dist"
    for name in ("src/groupwise/a.py", "recipes/b.toml", "tests/test_a.py", "README.md", "LICENSE"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).touch()
    shutil.copy(HOME / "pyproject.toml", home)
    git = ("git", "-C", str(home))
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    dist.mkdir()
    name = f"groupwise-{PROJECT['version']}"
    with zipfile.ZipFile(dist / f"{name}-py3-none-any.whl", "w") as wheel:
        for file in ["groupwise/a.py", "groupwise/recipes/b.toml", *(f"{name}.dist-info/{x}" for x in METADATA)]:
            wheel.writestr(file, "")
    with tarfile.open(dist / f"{name}.tar.gz", "w:gz") as source:
        for file in ["src/groupwise/a.py", "recipes/b.toml", "pyproject.toml", "README.md", "LICENSE"]:
            source.add(home / file, f"{name}/{file}")
        for file in ADDED:
            source.addfile(tarfile.TarInfo(f"{name}/{file}"))
    return home, dist


def test_a_distribution_with_a_file_too_many_or_too_few_is_not_released(released: tuple[Path, Path]) -> None:
    home, dist = released
    assert check(dist, home) == []
    (wheel,) = dist.glob("*.whl")
    with zipfile.ZipFile(wheel, "a") as files:
        files.writestr("groupwise/runs/secret.txt", "")
    (home / "src/groupwise/new.py").touch()
    subprocess.run(["git", "-C", str(home), "add", "."], check=True)
    first, second, third = check(dist, home)
    assert "has 1 files" in first and first.endswith("groupwise/runs/secret.txt")
    assert "lacks 1 files" in second and second.endswith("groupwise/new.py")
    assert "tar.gz lacks 1 files" in third
    (dist / "old.whl").touch()
    assert "nothing else" in check(dist, home)[0]
