"""Write synthetic images as files that other tools read; every file carries the guarantee."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image
from PIL.PngImagePlugin import PngInfo

from sfumato.data.formats.folder import check_name
from sfumato.data.images import PublicImages
from sfumato.files import new_folder, write_json
from sfumato.options import ExportFormat
from sfumato.release.card import Card
from sfumato.release.pages import grid
from sfumato.release.registry import write_catalogue
from sfumato.release.synthetic import SyntheticImages

DESCRIPTION = 0x010E
"""EXIF's number of an image's description."""
_SYNTHETIC = "Synthetic image, "

_ROWS = 1000  # of a parquet file that are written together


def export(
    synthetic: SyntheticImages,
    path: str | Path,
    *,
    format: ExportFormat = "folder",
    allow_no_guarantee: bool = False,
) -> Path:
    """Write synthetic images and their card into a new folder, all or nothing.

    The guarantee's sentence is in the metadata of every file.

    Args:
        synthetic: What ``release.sample`` returned.
        path: The folder to write; it must be empty or absent.
        format: "folder" writes ``images/<class>/000000.png``; "npz" writes ``images.npz`` with images, labels and
            classes; "parquet" writes ``images.parquet`` in Hugging Face form; "dicom" writes
            ``images/<class>/000000.dcm``, marked as synthetic. ``card.json`` is beside them, with a sheet of samples
            (``samples.png``), a dataset card (``README.md``) and Croissant metadata (``croissant.json``).
        allow_no_guarantee: Images whose card says "no guarantee" are written only with this.

    Returns:
        The folder.
    """
    path = Path(path)
    if format not in _WRITERS:
        raise ValueError(f"format must be one of {', '.join(_WRITERS)}, not {format!r}")
    check_export(synthetic.card, path, allow_no_guarantee=allow_no_guarantee)
    with new_folder(path) as temporary:
        _WRITERS[format](temporary, synthetic)
        contact_sheet(synthetic).save(temporary / "samples.png", optimize=True)
        write_json(temporary / "card.json", synthetic.card.to_json(), private=False)
        write_catalogue(temporary, synthetic)
    return path


def check_export(card: Card, path: Path, *, allow_no_guarantee: bool) -> None:
    """Refuse images without a guarantee, unless that is meant, and a folder that is not empty."""
    if not card.certified and not allow_no_guarantee:
        raise ValueError(
            "these images come without a privacy guarantee; to export them all the same say "
            "allow_no_guarantee=True (--allow-no-guarantee), and the files will carry the warning"
        )
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise FileExistsError(f"{path} is not empty; an export is never written over something else")


def is_export(path: str | Path) -> bool:
    """Whether ``path`` is a folder that ``export`` wrote: images with ``card.json`` beside them."""
    return (Path(path) / "card.json").is_file() and _exported_images(Path(path)) is not None


def read_export(path: str | Path) -> SyntheticImages:
    """The images that ``export`` wrote, with the card that was written beside them."""
    path = Path(path)
    place = _exported_images(path)
    if place is None or not (path / "card.json").is_file():
        raise FileNotFoundError(f"{path} holds no exported images with their card.json")
    card = Card.read(path)
    found = PublicImages.read(place)
    if not set(found.classes) <= set(card.classes):
        raise ValueError(f"{path}: the images have classes that their card does not name")
    places = np.array([card.classes.index(name) for name in found.classes], dtype=np.int64)
    return SyntheticImages(np.asarray(found.pixels), places[found.labels], card)


def _exported_images(path: Path) -> Path | None:
    return next((path / name for name in ("images", "images.npz", "images.parquet") if (path / name).exists()), None)


def described_guarantee(description: str) -> str | None:
    """The guarantee in the description that ``export`` gives an image, if it is one."""
    words, _, rest = description.partition(": ")
    return words.removeprefix(_SYNTHETIC) if rest and words.startswith(_SYNTHETIC) else None


def contact_sheet(synthetic: SyntheticImages) -> Image.Image:
    """Up to ten images of each of the first ten classes, a row for each class."""
    order = np.argsort(synthetic.labels, kind="stable")
    labels = synthetic.labels[order]
    rows = [order[labels == number][:10] for number in np.unique(labels)[:10]]
    width, blank = max(map(len, rows), default=1), np.full((1, *synthetic.images.shape[1:]), 255, np.uint8)
    # A class with few images leaves the rest of its row white.
    parts = [part for row in rows for part in (synthetic.images[row], np.repeat(blank, width - len(row), axis=0))]
    images = np.concatenate(parts or [blank])
    return grid(images, columns=width, scale=max(1, 84 // images.shape[-1]))


def _exif(card: Card) -> bytes:
    """The sentence as EXIF, which many programs keep when they write an image in another format."""
    found = Image.Exif()
    found[DESCRIPTION] = f"{_SYNTHETIC}{card.guarantee}: {card.sentence}".encode("ascii", "replace").decode()
    return found.tobytes()


def _png(image: np.ndarray, info: PngInfo, exif: bytes) -> bytes:
    picture = Image.fromarray(image[0] if len(image) == 1 else np.ascontiguousarray(np.moveaxis(image, 0, -1)))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", pnginfo=info, exif=exif)
    return buffer.getvalue()


def _text_chunks(card: Card) -> PngInfo:
    """The guarantee as text chunks of a PNG: international text, because a sentence may hold any letter."""
    info = PngInfo()
    info.add_itxt("guarantee", card.guarantee)
    info.add_itxt("sentence", card.sentence)
    info.add_itxt("run", card.run)
    return info


def _write_folder(folder: Path, synthetic: SyntheticImages) -> None:
    info, exif = _text_chunks(synthetic.card), _exif(synthetic.card)
    for number, name in enumerate(synthetic.classes):
        check_name(name)
        place = folder / "images" / name
        place.mkdir(parents=True)
        for row in np.flatnonzero(synthetic.labels == number):
            (place / f"{row:06d}.png").write_bytes(_png(synthetic.images[row], info, exif))


def _write_npz(folder: Path, synthetic: SyntheticImages) -> None:
    images = synthetic.images
    np.savez_compressed(
        folder / "images.npz",
        images=images[:, 0] if images.shape[1] == 1 else np.ascontiguousarray(np.moveaxis(images, 1, -1)),
        labels=synthetic.labels.astype(np.int64),
        classes=np.array(synthetic.classes, dtype=np.str_),
        guarantee=np.array(synthetic.card.guarantee),
        sentence=np.array(synthetic.card.sentence),
    )


def _write_parquet(folder: Path, synthetic: SyntheticImages) -> None:
    card = synthetic.card
    features = {"image": {"_type": "Image"}, "label": {"names": list(card.classes), "_type": "ClassLabel"}}
    schema = pa.schema(
        [("image", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("label", pa.int64())],
        metadata={
            "huggingface": json.dumps({"info": {"features": features}}),
            "guarantee": card.guarantee,
            "sentence": card.sentence,
        },
    )
    info, exif = _text_chunks(card), _exif(card)
    with pq.ParquetWriter(folder / "images.parquet", schema) as writer:
        for start in range(0, len(synthetic), _ROWS):
            rows = enumerate(synthetic.images[start : start + _ROWS], start=start)
            pictures = [{"bytes": _png(image, info, exif), "path": f"{row:06d}.png"} for row, image in rows]
            labels = synthetic.labels[start : start + _ROWS]
            writer.write_table(pa.table({"image": pictures, "label": labels}, schema=schema))


def write_dicom_files(folder: Path, synthetic: SyntheticImages) -> None:
    """Write ``images/<class>/000000.dcm``: Secondary Capture images, one study, one series for each class.

    SyntheticData is YES, ConversionType SYN (synthetic image), the patient is nobody, and ImageComments has the
    guarantee. UIDs are new ones derived from UUIDs (PS3.5, B.2).
    """
    try:
        from pydicom.uid import generate_uid
    except ImportError:
        raise ImportError("DICOM files need the package pydicom: pip install 'sfumato[dicom]'") from None
    study, now = generate_uid(prefix=None), datetime.now(UTC)
    for number, name in enumerate(synthetic.classes):
        check_name(name)
        place = folder / "images" / name
        place.mkdir(parents=True)
        series = generate_uid(prefix=None)
        for row in np.flatnonzero(synthetic.labels == number):
            found = _dataset(synthetic.images[row], synthetic.card, now)
            found.StudyInstanceUID, found.SeriesInstanceUID = study, series
            found.SeriesNumber, found.InstanceNumber = number + 1, int(row) + 1
            found.SeriesDescription = name[:64]
            found.save_as(place / f"{row:06d}.dcm", enforce_file_format=True)


def _dataset(image: np.ndarray, card: Card, now: datetime):  # type: ignore[no-untyped-def]
    """One image with everything but its place in the study."""
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    found, meta = Dataset(), FileMetaDataset()
    found.SpecificCharacterSet = "ISO_IR 192"
    found.SOPClassUID, found.SOPInstanceUID = SecondaryCaptureImageStorage, generate_uid(prefix=None)
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID, meta.MediaStorageSOPInstanceUID = found.SOPClassUID, found.SOPInstanceUID
    found.file_meta = meta
    found.PatientName, found.PatientID = "SYNTHETIC^IMAGE", f"SYNTHETIC-{card.run[:16]}"
    for name in ("PatientBirthDate", "PatientSex", "ReferringPhysicianName", "StudyID", "AccessionNumber"):
        setattr(found, name, "")
    found.StudyDate = found.ContentDate = f"{now:%Y%m%d}"
    found.StudyTime = found.ContentTime = f"{now:%H%M%S}"
    found.Modality, found.ConversionType, found.Manufacturer = "OT", "SYN", "Sfumato"
    found.ImageType, found.SyntheticData = ["DERIVED", "SECONDARY"], "YES"
    found.ManufacturerModelName, found.SoftwareVersions = card.method[:64], card.versions["sfumato"][:64]
    found.StudyDescription = f"Synthetic images, {card.guarantee}"
    found.ImageComments = f"Synthetic image, {card.guarantee}: {card.sentence}"
    colour = len(image) == 3
    found.Rows, found.Columns, found.SamplesPerPixel = *image.shape[1:], len(image)
    found.PhotometricInterpretation = "RGB" if colour else "MONOCHROME2"
    if colour:
        found.PlanarConfiguration = 0
    found.BitsAllocated, found.BitsStored, found.HighBit, found.PixelRepresentation = 8, 8, 7, 0
    pixels = np.ascontiguousarray(np.moveaxis(image, 0, -1)).tobytes()
    found.PixelData = pixels + b"\0" * (len(pixels) % 2)  # a value has an even length
    found["PixelData"].VR = "OB"
    return found


_WRITERS: dict[str, Callable[[Path, SyntheticImages], None]] = {
    "folder": _write_folder,
    "npz": _write_npz,
    "parquet": _write_parquet,
    "dicom": write_dicom_files,
}
