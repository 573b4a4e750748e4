"""Compare the wheel and the source distribution in a directory with the repository: `python -m tools.check_dist dist`.

Needs the standard library only. Ends with an error that names the files which are missing or too many.
"""

import subprocess
import sys
import tarfile
import tomllib
import zipfile
from collections.abc import Iterable
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
METADATA = {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
"""The files of a wheel beside the package."""
ADDED = {"PKG-INFO", ".gitignore"}
"""The files that the build backend adds to the source distribution."""
BESIDE = {"pyproject.toml", "README.md", "LICENSE"}
"""The files of a source distribution that the build backend takes without being asked."""


def check(directory: Path, home: Path = HOME) -> list[str]:
    """What is wrong with the distributions of a directory, a line each."""
    project = tomllib.loads((home / "pyproject.toml").read_text("utf-8"))
    name = f"{project['project']['name']}-{project['project']['version']}"
    wheel, source = directory / f"{name}-py3-none-any.whl", directory / f"{name}.tar.gz"
    if sorted(directory.iterdir()) != sorted([wheel, source]):
        return [f"{directory} must have {wheel.name} and {source.name}, and nothing else"]
    tracked = subprocess.run(["git", "ls-files"], cwd=home, capture_output=True, text=True, check=True).stdout.split()
    packaged = {path.removeprefix("src/") for path in tracked if path.startswith("src/")}
    packaged |= {f"groupwise/{path}" for path in tracked if path.startswith("recipes/")}
    metadata = {f"{name}.dist-info/{file}" for file in METADATA}
    folders = tuple(path.strip("/") for path in project["tool"]["hatch"]["build"]["targets"]["sdist"]["include"])
    included = {path for path in tracked if path in BESIDE or path.startswith(folders)}
    with zipfile.ZipFile(wheel) as files, tarfile.open(source) as archive:
        of_source = {file.removeprefix(f"{name}/") for file in archive.getnames()}
        return [
            *_difference(wheel.name, set(files.namelist()), packaged | metadata),
            *_difference(source.name, of_source, included | ADDED),
        ]


def _difference(archive: str, files: set[str], expected: set[str]) -> Iterable[str]:
    for what, paths in (("has", files - expected), ("lacks", expected - files)):
        if paths:
            yield f"{archive} {what} {len(paths)} files against the repository: {', '.join(sorted(paths)[:10])}"


if __name__ == "__main__":
    sys.exit("\n".join(check(Path(sys.argv[1]))) or None)
