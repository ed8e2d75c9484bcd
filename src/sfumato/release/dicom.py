"""Synthetic images as DICOM files, which standard attributes mark as synthetic."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from sfumato.data.formats.folder import check_name
from sfumato.release.card import Card
from sfumato.release.synthetic import SyntheticImages


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
