"""The sdist and the wheel hold what they should, the installed package runs without the repository, the site builds."""

from __future__ import annotations

import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LOCK = (ROOT / "requirements.lock").read_text()
DEMO = """
from pathlib import Path
from rich.console import Console
import sfumato
from sfumato.cli.demo import run_demo
from sfumato.methods import DPMERF
assert "fresh" in sfumato.__file__, sfumato.__file__
run_demo(Path("demo"), method=DPMERF.small(), console=Console(quiet=True))
"""


def run(*words: str | Path, place: Path) -> None:
    done = subprocess.run([str(word) for word in words], cwd=place, capture_output=True, text=True)
    assert done.returncode == 0, f"{words}\n{done.stdout}\n{done.stderr}"


@pytest.mark.long
def test_the_sdist_builds_a_wheel_that_runs_the_demo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:

    monkeypatch.delenv("PYTHONPATH", raising=False)
    run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path, "-t", "sdist", place=ROOT)
    [sdist] = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
        archive.extractall(tmp_path, filter="data")
    assert {
        "README.md",
        "LICENSE",
        "constraints.txt",
        "requirements.lock",
        "src/sfumato/py.typed",
        "docs/index.md",
    } <= names
    source = tmp_path / sdist.name.removesuffix(".tar.gz")
    run(sys.executable, "-m", "hatchling", "build", "-d", tmp_path, "-t", "wheel", place=source)
    [wheel] = tmp_path.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = set(archive.namelist())
    assert "sfumato/py.typed" in packed and not any(name.startswith(("tests", "docs")) for name in packed)
    wanted = {path.relative_to(ROOT / "src").as_posix() for path in (ROOT / "src" / "sfumato").rglob("templates/*")}
    assert wanted and wanted <= packed, "templates are part of the wheel"
    # The packages that it depends on are those of this environment; installing them again would take minutes.
    run(sys.executable, "-m", "venv", "--without-pip", "fresh", place=tmp_path)
    site = next((tmp_path / "fresh" / "lib").glob("python*/site-packages"))
    (site / "dependencies.pth").write_text(sysconfig.get_paths()["purelib"] + "\n", encoding="utf-8")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    run(tmp_path / "fresh" / "bin" / "python", "-c", DEMO, place=tmp_path)
    assert (tmp_path / "demo" / "release" / "card.json").exists()
    run(tmp_path / "fresh" / "bin" / "python", "-m", "sfumato", "--version", place=tmp_path)


def test_the_lock_has_a_hash_of_every_package_at_the_pinned_version() -> None:
    pinned = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().split())
    entries = re.findall(
        r"^([a-z0-9._-]+)==(\S+) \\\n((?: +--hash=sha256:[0-9a-f]{64}(?: \\)?\n)+)", LOCK, re.MULTILINE
    )
    locked = {name: version for name, version, _ in entries}
    assert len(entries) == LOCK.count("==") and all(hashes for _, _, hashes in entries)
    assert {name: version for name, version in locked.items() if pinned.get(name, version) != version} == {}
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [one for extra in ("dicom", "eval", "sign", "web") for one in project["optional-dependencies"][extra]]
    needed = {re.split(r"[=<>]", one)[0] for one in project["dependencies"] + extras}
    assert needed <= locked.keys()


@pytest.mark.long
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    words = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path)]
    run(*words, place=ROOT)
    for page in tmp_path.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        outside = r'(<script[^>]* src|<link[^>]*stylesheet[^>]* href|<img[^>]* src)="?(https?:)?//'
        assert not re.search(outside, text), page
