"""Do the seeded small forms of all methods still release the same bits? ``python tests/released_bits.py [--write]``.

A change that only moves code leaves every hash in ``fixtures/released-bits.json`` as it is. Where a change alters the
released bits on purpose, it writes the file again and its message says why. Bits depend on the processor and on torch,
so this is a script for one machine and no test: run it before and after a change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))

from sfumato.methods import METHODS, find
from sfumato.privacy import Budget, BudgetExceeded, NoGuarantee
from worst_case import worst_case_images

FIXTURE = Path(__file__).parent / "fixtures" / "released-bits.json"


def released(name: str, variant: str, *, unit: str) -> str:
    """A hash of the released tensors and of a few samples."""
    method = find(name).small(variant)
    images = worst_case_images(persons=unit == "person")
    release = None
    for epsilon in (3.0, 30.0, 300.0):
        try:
            budget = Budget(epsilon, 1e-5, unit=unit) if method.certified_variants() else NoGuarantee()
            method.plan(budget)
        except BudgetExceeded:
            continue
        release = method.fit(images, budget, seed=5, device="cpu")
        break
    assert release is not None, "no budget can pay for it"
    found = hashlib.sha256()
    for key, tensor in sorted(release.model.state_dict().items()):
        found.update(key.encode() + tensor.cpu().contiguous().numpy().tobytes())
    found.update(release.sample(4, seed=1).images.tobytes())
    return found.hexdigest()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="Write the fixture again.")
    parser.add_argument("names", nargs="*", help="Methods to run [default: all].")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    known = json.loads(FIXTURE.read_text()) if FIXTURE.exists() else {}
    found = {}
    for name in METHODS:
        if arguments.names and name not in arguments.names:
            continue
        kind = find(name)
        for variant in kind.variants:
            for unit in ("image", "person") if kind.certified_variants() else ("image",):
                key = f"{name} {variant} {unit}"
                found[key] = released(name, variant, unit=unit)
                same = known.get(key) == found[key]
                print("same     " if same else "different", key, flush=True)
    if arguments.write:
        FIXTURE.write_text(json.dumps({**known, **found}, indent=1, sort_keys=True) + "\n")
        return 0
    gone = [] if arguments.names else [key for key in known if key not in found]
    for key in gone:
        print("gone     ", key)
    return int(bool(gone) or any(known.get(key) != value for key, value in found.items()))


if __name__ == "__main__":
    sys.exit(main())
