"""The first hour of three users, from a clone of the repository to a verified release; each prints its CPU time."""

from __future__ import annotations

import json
import os
import re
import resource
import shlex
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pydicom
import pytest
from PIL import Image

from sfumato.data.digits import draw_digits
from web.served import chromium, served

ROOT = Path(__file__).parents[2]
CLASSES = ("bacteria", "normal", "virus")

pytestmark = pytest.mark.long


@pytest.fixture
def clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A clone of what is committed, whose package is used instead of the one that is installed."""
    folder, before = tmp_path / "clone", used()
    subprocess.run(["git", "clone", "-q", ROOT, folder], check=True)
    monkeypatch.setenv("PYTHONPATH", str(folder / "src"))
    monkeypatch.chdir(tmp_path)
    yield folder
    print(f"{request.node.name}: {used() - before:.0f} s of CPU time")


def used() -> float:
    """Seconds of this process and of those that it started."""
    both = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in both)


def run(*words: str | Path, status: int = 0) -> str:
    """A command to its end; what it prints."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"}
    done = subprocess.run([str(word) for word in words], capture_output=True, text=True, env=environment, timeout=1200)
    assert done.returncode == status and "Traceback" not in done.stderr, f"{words}\n{done.stdout}\n{done.stderr}"
    return done.stdout + done.stderr


def sfumato(words: str) -> str:
    return run(sys.executable, "-m", "sfumato", *words.split())


def write_scans(folder: Path, *, persons: int = 200) -> Path:
    """Three images of each person, whose name begins the file's name, as in published sets of chest X-rays."""
    drawn = draw_digits(3 * persons, seed=1)
    for row, pixels in enumerate(drawn.pixels):
        name = CLASSES[drawn.labels[row] % 3]
        (folder / name).mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[0]).save(folder / name / f"person{row // 3}_{name}_{row}.png")
    return folder


def verified(clone: Path, release: Path, ledger: Path) -> None:
    """By the file that knows nothing of the package."""
    said = run(sys.executable, "-I", clone / "verifier" / "verify_release.py", release, "--ledger", ledger)
    assert "agrees with the ledger" in said


def check_dicom(folder: Path, count: int) -> None:
    found = [pydicom.dcmread(path) for path in folder.rglob("*.dcm")]
    assert len(found) == count
    assert all(one.SyntheticData == "YES" and "certified" in one.ImageComments for one in found)


def test_a_data_manager_on_the_command_line(clone: Path, tmp_path: Path) -> None:
    """The facts that ``inspect`` proposes go through ``plan`` and ``train``, which name the same method."""
    write_scans(tmp_path / "scans")
    assert "the part before the first _: 200 persons, 3 each" in sfumato("inspect scans")
    said = run(sys.executable, "-m", "sfumato", "inspect", "scans", "--person-pattern", "^([^_]+)_")
    assert "What to expect at ε 1" in said
    expected = re.search(r"What to expect at ε 1: ([\w-]+):", said)
    plan, train = (re.search(rf"sfumato ({name} .*)", said) for name in ("plan", "train"))
    assert expected and plan and train
    assert f"'sfumato train' takes {expected[1]}:" in sfumato(plan[1])
    words = [word.replace("run", "first") if word == "run" else word for word in shlex.split(train[1])]
    said = run(sys.executable, "-m", "sfumato", *words, "--hold-out", "0.2")
    assert f"Method: {expected[1]}:" in said and "for each person" in (said + _card(tmp_path / "first"))
    sfumato("sample first --count 30 --format dicom --out synthetic")
    check_dicom(tmp_path / "synthetic", 30)
    evaluated = run(
        *(sys.executable, "-m", "sfumato", "evaluate", "synthetic", "--real", "scans", "--held-out", "first"),
        *("--person-pattern", "^([^_]+)_"),
    )
    assert "NOT PRIVATE" in evaluated
    sfumato("report first")
    verified(clone, tmp_path / "first" / "release", tmp_path / "first" / "ledger.jsonl")


def _card(folder: Path) -> str:
    card = json.loads((folder / "release" / "card.json").read_text())
    return f"ε {card['epsilon']} for each {card['unit']}"


def test_an_engineer_in_python(clone: Path, tmp_path: Path) -> None:
    """A torch data set goes in, and what comes out trains a classifier through a DataLoader."""
    program = """
        import torch
        from torch.utils.data import DataLoader, TensorDataset

        import sfumato as sf
        from sfumato.data.digits import draw_digits

        def dataset(count, seed):
            drawn = draw_digits(count, seed=seed)
            return TensorDataset(torch.tensor(drawn.pixels[:]).float() / 255, torch.tensor(drawn.labels))

        private = sf.PrivateImages.from_dataset(dataset(4000, 0), classes=10, declared_size=4000)
        method, budget = sf.DPMixture(), sf.Budget(epsilon=10, delta=1e-5)
        print(method.plan(budget))
        release = method.fit(private, budget, ledger="digits.ledger", device="cpu")
        release.save("released")
        print(sf.load("released"))
        model = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(784, 10))
        optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
        for _ in range(5):
            for images, labels in DataLoader(release.sample(2000), batch_size=50, shuffle=True):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(images), labels).backward()
                optimizer.step()
        images, labels = dataset(500, 1).tensors
        print("right:", (model(images).argmax(1) == labels).float().mean().item())
    """
    said = run(sys.executable, "-c", textwrap.dedent(program))
    assert "noise multiplier" in said and "certified: ε" in said
    right = re.search(r"right: ([\d.]+)", said)
    assert right and float(right[1]) > 0.6, said
    verified(clone, tmp_path / "released", tmp_path / "digits.ledger")


def test_a_data_manager_in_the_browser_by_mouse(clone: Path, tmp_path: Path) -> None:
    """From the folder to images that may leave, and back to what an independent verifier says about them."""
    (tmp_path / "data").mkdir()
    write_scans(tmp_path / "data" / "scans")
    with served(tmp_path / "data") as server, chromium() as browser:
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(600_000)
        problems: list[str] = []
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.goto(server.entrance)
        page.get_by_role("link", name="Choose a collection").first.click()
        page.get_by_text("3 classes, 600 images").wait_for()
        page.get_by_role("button", name="Use scans").click()
        page.wait_for_url("**/collections/*")
        assert page.locator("[aria-current=step]").inner_text() == "see what is in them"
        assert page.locator("input[name=unit]:checked").count() == 0  # nobody is asked less than who is protected
        page.get_by_text("the part before the first _: 200 persons").click()
        page.get_by_label("number of images or persons").fill("200")
        page.get_by_role("button", name="Show the plan").click()
        page.wait_for_url("**/plans/*")
        page.get_by_label("name of the run").fill("first")
        page.locator("#others summary").click()
        page.get_by_role("radio", name="dp-mixture").click()
        page.get_by_role("button", name="Start the training").click()
        page.wait_for_url("**/runs/first")
        assert "may leave" in page.locator("main").inner_text()
        page.frame_locator("iframe[title^=Internal]").get_by_alt_text("Private images, a row for each class").wait_for()
        page.get_by_role("link", name="To the release").click()
        page.get_by_label("number of images").fill("30")
        page.get_by_label("format").select_option("dicom")
        page.get_by_role("button", name="Export").click()
        page.get_by_role("link", name="Download first").wait_for()
        assert problems == []
    own = tmp_path / "data" / "sfumato"
    check_dicom(next((own / "exports").iterdir()), 30)
    [ledger] = [path for path in (own / "ledgers").iterdir() if path.suffix == ".jsonl"]
    verified(clone, own / "runs" / "first" / "release", ledger)


def test_a_researcher_adds_a_loop_of_ones_own(clone: Path) -> None:
    said = run(sys.executable, clone / "examples" / "own_loop.py")
    assert np.mean([int(share) for share in re.findall(r"accuracy (\d+)%", said)]) > 70, said
