"""A signed release: what was signed verifies, and nothing else does."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from cli.commands import run_here
from sfumato.methods.dp_merf import DPMERF
from sfumato.privacy import Budget
from sfumato.release.signature import FILE, BadSignature, SigningKey, read_public_key, verify
from sfumato.report.scan import scan
from worst_case import worst_case_images

PEM = serialization.Encoding.PEM


def key_files(folder: Path, name: str, password: bytes | None = None) -> tuple[Path, Path]:
    """A new private key and its public key."""
    key = Ed25519PrivateKey.generate()
    how = serialization.BestAvailableEncryption(password) if password else serialization.NoEncryption()
    private, public = folder / f"{name}.pem", folder / f"{name}.pub.pem"
    private.write_bytes(key.private_bytes(PEM, serialization.PrivateFormat.PKCS8, how))
    public.write_bytes(key.public_key().public_bytes(PEM, serialization.PublicFormat.SubjectPublicKeyInfo))
    return private, public


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two keys, a ledger and a signed release."""
    folder = tmp_path_factory.mktemp("signed")
    private, _ = key_files(folder, "ours")
    key_files(folder, "other")
    release = DPMERF.small().fit(worst_case_images(), Budget(3.0, 1e-5), folder / "ledger", device="cpu")
    release.save(folder / "release", key=SigningKey.read(private))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(made, tmp_path / "copy"))


def test_what_was_signed_verifies(folder: Path) -> None:
    signer = verify(folder / "release", public_key=read_public_key(folder / "ours.pub.pem"))
    assert signer is not None and signer == verify(folder / "release")
    assert scan(folder / "release") == []


def test_another_key_is_named(folder: Path) -> None:
    other = read_public_key(folder / "other.pub.pem")
    with pytest.raises(BadSignature, match="another key"):
        verify(folder / "release", public_key=other)
    # The other signer's key in place of the true one: the signature is not that key's.
    entry = json.loads((folder / "release" / FILE).read_text())
    (folder / "release" / FILE).write_text(json.dumps({**entry, "public_key": other.hex()}))
    with pytest.raises(BadSignature, match="not that of the key"):
        verify(folder / "release", public_key=other)


def changed(path: Path, old: bytes, new: bytes) -> None:
    content = path.read_bytes()
    assert content.count(old) >= 1
    path.write_bytes(content.replace(old, new, 1))


@pytest.mark.parametrize("what", ["card", "weights", "ledger head", "page"])
def test_a_changed_release_does_not_verify(folder: Path, what: str) -> None:
    release = folder / "release"
    card = json.loads((release / "card.json").read_text())
    if what == "card":
        (release / "card.json").write_text(json.dumps({**card, "epsilon": 0.1}))
    elif what == "weights":
        content = bytearray((release / "model.safetensors").read_bytes())
        content[-1] ^= 1
        (release / "model.safetensors").write_bytes(content)
    elif what == "ledger head":
        changed(release / "card.json", card["ledger_head"]["hash"].encode(), b"0" * 64)
    else:
        changed(release / "card.html", b"<html", b"<html ")
    with pytest.raises(BadSignature, match="changed after it was signed"):
        verify(release)


def test_a_signature_cannot_be_made_to_fit_or_hold_more(folder: Path) -> None:
    """A head that is changed in the signed part as well is not what the key signed; further entries are refused."""
    path = folder / "release" / FILE
    entry = json.loads(path.read_text())
    path.write_text(json.dumps({**entry, "signed": {**entry["signed"], "run": "0" * 32}}))
    with pytest.raises(BadSignature, match="not that of the key"):
        verify(folder / "release")
    path.write_text(json.dumps({**entry, "note": "hello"}))
    assert [finding.where for finding in scan(folder / "release")] == [f"release/{FILE}"]
    path.write_text("[]")
    with pytest.raises(BadSignature, match="is not a signature"):
        verify(folder / "release")


def test_a_card_that_is_no_longer_json_does_not_verify(folder: Path) -> None:
    (folder / "release" / "card.json").write_text("{")
    with pytest.raises(BadSignature, match="card"):
        verify(folder / "release")


def test_an_unsigned_release(folder: Path) -> None:
    (folder / "release" / FILE).unlink()
    assert verify(folder / "release") is None
    with pytest.raises(BadSignature, match="not signed"):
        verify(folder / "release", public_key=read_public_key(folder / "ours.pub.pem"))


def test_keys_of_other_kinds_are_refused(folder: Path) -> None:
    private, _ = key_files(folder, "locked", b"word")
    with pytest.raises(ValueError, match="password"):
        SigningKey.read(private)
    assert SigningKey.read(private, password="word")
    curve = generate_private_key(SECP256R1())
    (folder / "curve.pem").write_bytes(
        curve.private_bytes(PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    )
    with pytest.raises(ValueError, match="ed25519"):
        SigningKey.read(folder / "curve.pem")
    with pytest.raises(ValueError, match="public key"):
        read_public_key(folder / "ours.pem")


def test_the_ledger_command_verifies_and_signs(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def ask(*words: str) -> tuple[int, str]:
        status = run_here(monkeypatch, "ledger", str(folder / "ledger"), *words)
        return status, capsys.readouterr().out

    release, ours, other = str(folder / "release"), str(folder / "ours.pub.pem"), str(folder / "other.pub.pem")
    status, said = ask("--release", release, "--key", ours)
    assert status == 0 and "are signed by the key" in said
    status, said = ask("--release", release, "--key", other)
    assert status == 1 and "does NOT hold" in said
    status, said = ask("--release", release, "--sign", str(folder / "other.pem"), "--key", other, "--json")
    assert status == 0 and json.loads(said)["signer_checked"]
    changed(folder / "release" / "card.html", b"<html", b"<html ")
    status, said = ask("--release", release, "--json")
    assert status == 1 and "card.html" in json.loads(said)["signature_error"]
    assert ask("--key", ours)[0] == 2


def test_a_ledger_that_lost_the_runs_entries_is_not_signed_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The signature names the head; a ledger without it does not hold the release, whoever signed it."""
    lines = (folder / "ledger").read_text().splitlines()
    (folder / "ledger").write_text("\n".join(lines[:-1]) + "\n")
    head = {"length": len(lines) - 1, "hash": json.loads(lines[-2])["hash"]}
    (folder / "ledger.head").write_text(json.dumps(head))
    release = folder / "release"
    (release / FILE).unlink()
    words = ["ledger", str(folder / "ledger"), "--release", str(release), "--sign", str(folder / "ours.pem")]
    assert run_here(monkeypatch, *words) == 1
    assert "NOT fit this ledger" in capsys.readouterr().out and not (release / FILE).exists()


def test_a_release_without_a_signature_needs_no_cryptography(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "cryptography"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    assert verify(tmp_path) is None
    (tmp_path / "signature.json").write_text("{}")
    with pytest.raises(ImportError, match=r"sfumato\[sign\]"):
        verify(tmp_path)
