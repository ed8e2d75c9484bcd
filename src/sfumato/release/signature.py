"""A detached ed25519 signature over a release: its card, its weights and the ledger's head.

Whoever has the signer's public key can tell that the three belong together and were not changed since. The signature
says who vouches for the release; the guarantee follows from the card, as without a signature.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sfumato.files import parsed_json, write_file, write_json
from sfumato.privacy import Ledger
from sfumato.privacy.ledger import line_hash

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

FILE = "signature.json"
_SIGNED_FILES = ("card.json", "card.html", "model.safetensors")
_FORMAT = "sfumato release 1"


class BadSignature(ValueError):
    """The release is not what was signed, or another key signed it."""


@dataclass(frozen=True)
class SigningKey:
    """A private ed25519 key."""

    key: Ed25519PrivateKey

    @classmethod
    def read(cls, path: str | Path, *, password: str | None = None) -> SigningKey:
        """Read a PEM file, as ``openssl genpkey -algorithm ed25519`` writes it."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        serialization = _serialization()
        secret = None if password is None else password.encode()
        try:
            key = serialization.load_pem_private_key(Path(path).read_bytes(), password=secret)
        except (ValueError, TypeError):
            raise ValueError(f"{path} is not a private key in PEM form, or its password is another") from None
        if not isinstance(key, Ed25519PrivateKey):
            raise ValueError(f"{path} is not an ed25519 key; make one with openssl genpkey -algorithm ed25519")
        return cls(key)

    def sign(self, folder: str | Path) -> Path:
        """Write ``signature.json`` into a release's folder."""
        folder = Path(folder)
        signed = _contents(folder)
        entry = {
            "signed": signed,
            "public_key": _public_bytes(self.key.public_key()).hex(),
            "signature": base64.b64encode(self.key.sign(_message(signed))).decode(),
        }
        return write_json(folder / FILE, entry, private=False)


def fingerprint(public_key: bytes) -> str:
    """A short name of a public key."""
    return hashlib.sha256(public_key).hexdigest()[:16]


def read_public_key(path: str | Path) -> bytes:
    """The 32 bytes of a public ed25519 key in PEM form, as ``openssl pkey -pubout`` writes it."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        key = _serialization().load_pem_public_key(Path(path).read_bytes())
    except ValueError:
        raise ValueError(f"{path} is not a public key in PEM form") from None
    if not isinstance(key, Ed25519PublicKey):
        raise ValueError(f"{path} is not an ed25519 key")
    return _public_bytes(key)


def verify(folder: str | Path, *, public_key: bytes | None = None) -> str | None:
    """The fingerprint of the key that signed the release; None if it is not signed.

    Args:
        folder: The release's folder.
        public_key: The key that must have signed it. Without one, the signature is checked against the key that it
            names itself, which shows that nothing was changed by accident, not who signed.

    Raises:
        BadSignature: If the release was changed after it was signed, or was signed by another key, or is not signed
            although ``public_key`` asks for it.
    """
    path = Path(folder) / FILE
    if not path.exists():
        if public_key is not None:
            raise BadSignature(f"{folder} is not signed")
        return None
    _serialization()  # says which extra is missing; a release without a signature does not need it
    from cryptography.exceptions import InvalidSignature
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        entry = parsed_json(path.read_text(encoding="utf-8"))
        if set(entry) != {"signed", "public_key", "signature"}:
            raise ValueError("other entries than a signature has")
        named, signature = bytes.fromhex(entry["public_key"]), base64.b64decode(entry["signature"], validate=True)
        key, signed = Ed25519PublicKey.from_public_bytes(named), entry["signed"]
        key.verify(signature, _message(signed))
    except InvalidSignature:
        raise BadSignature(f"the signature of {folder} is not that of the key it names") from None
    except (ValueError, KeyError, TypeError):
        raise BadSignature(f"{path} is not a signature") from None
    if public_key is not None and named != public_key:
        raise BadSignature(f"{folder} was signed by another key, {fingerprint(named)}")
    try:
        found = _contents(Path(folder))
    except (ValueError, KeyError, TypeError, FileNotFoundError):
        raise BadSignature(f"{folder} does not hold a card and weights as they were signed") from None
    changed = sorted(key for key in {*found, *signed} if found.get(key) != signed.get(key))
    if changed:
        raise BadSignature(f"{folder} was changed after it was signed: {', '.join(changed)}")
    return fingerprint(named)


def _contents(folder: Path) -> dict[str, Any]:
    """What is signed: the hash of each file, and the ledger's head and run from the card."""
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in _SIGNED_FILES}
    card = parsed_json((folder / "card.json").read_text(encoding="utf-8"))
    return {"format": _FORMAT, **hashes, "ledger_head": card["ledger_head"], "run": card["run"]}


def _message(signed: Mapping[str, Any]) -> bytes:
    return json.dumps(signed, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def _public_bytes(key: Ed25519PublicKey) -> bytes:
    serialization = _serialization()
    return key.public_bytes(serialization.Encoding.Raw, serialization.PublicFormat.Raw)


def _serialization() -> Any:
    try:
        from cryptography.hazmat.primitives import serialization
    except ImportError:
        raise ImportError("signatures need the package cryptography: pip install 'sfumato[sign]'") from None
    return serialization


_NEVER = frozenset({"key"})


def write_transcript(ledger: Ledger, run: str, path: str | Path) -> Path:
    """Write the transcript of a run that has ended.

    It has the ledger's first line, which states the limit, and the lines of the run and of the runs that its release
    depends on, as they are; of every other line the hash, so that the chain can be followed. The verifier and
    ``docs/reference/file-formats.md`` say how it is read.
    """
    if ledger.entries()[0].get("version", 1) < 3:
        raise ValueError("a ledger that version 0.2.0 began has no transcript, since its chain needs every line")
    if not ledger.ended(run):
        raise ValueError(f"run {run} has not ended; a transcript is written with its release")
    shown, lines = {run, *ledger.lineage(run)}, []
    for entry, line, digest in ledger.lines():
        if entry["kind"] == "ledger" or (entry.get("run") in shown and entry["kind"] not in _NEVER):
            lines.append(line[:-1] + f', "hash": "{digest}"}}'.encode())
        else:
            lines.append(json.dumps({"withheld": line_hash(line)}).encode())
        if entry["kind"] == "end" and entry["run"] == run:
            break
    return write_file(path, b"\n".join(lines) + b"\n", private=False)


def run_of(folder: Path) -> str:
    """The run that a release's card names."""
    card: dict[str, Any] = parsed_json((folder / "card.json").read_text(encoding="utf-8"))
    return str(card["run"])
