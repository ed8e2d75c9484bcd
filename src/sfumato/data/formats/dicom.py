"""DICOM images by pydicom: modality and window transforms, photometric interpretation, and the patient as person.

No tag but those that the pixels need is read, and PatientID where it is to give the person; nothing is copied.
"""

from __future__ import annotations

from typing import IO, Any

import numpy as np

from sfumato.data.errors import BadInput, parsing

PATIENT = "PatientID"
_MALFORMED = "a DICOM file cannot be decoded: it is truncated, damaged or compressed in a way that is not supported"
_ADVICE = "Convert it to an uncompressed transfer syntax, or leave it out with skip_bad=True (--skip-bad)."


def is_dicom(file: IO[bytes]) -> bool:
    """Whether an open file is a DICOM file; it stays at its start."""
    file.seek(128)
    found = file.read(4) == b"DICM"
    file.seek(0)
    return found


def decode_dicom(file: IO[bytes], *, name: str = "") -> np.ndarray:
    """The first frame as ``[H, W]`` in 0..1, or ``uint8 [H, W, 3]`` for colour.

    Grey values go through the modality transform and the file's first window. Without a window the range of the
    stored bits is taken: a constant of the format, not the range that is found in the pixels.
    """
    pydicom = _pydicom()
    with parsing(_MALFORMED, advice=_ADVICE, name=name):
        found = pydicom.dcmread(file)
        pixels = np.asarray(found.pixel_array)
        photometric = str(found.PhotometricInterpretation)
        if int(found.get("NumberOfFrames", 1) or 1) > 1:
            pixels = pixels[0]
        if int(found.SamplesPerPixel) == 3:
            return _colour(pixels, photometric)
        return _grey(found, pixels, inverted=photometric == "MONOCHROME1")


def patient(file: IO[bytes], *, name: str = "") -> str | None:
    """The PatientID, which stays in memory; ``None`` where there is none."""
    pydicom = _pydicom()
    with parsing(_MALFORMED, advice=_ADVICE, name=name):
        found = pydicom.dcmread(file, stop_before_pixels=True, specific_tags=[PATIENT])
        return str(found.get(PATIENT, "")).strip() or None


def has_burned_in_text(file: IO[bytes]) -> bool:
    """Whether the file says that text, such as a name, is part of the image (BurnedInAnnotation)."""
    found = _pydicom().dcmread(file, stop_before_pixels=True, specific_tags=["BurnedInAnnotation"])
    return str(found.get("BurnedInAnnotation", "")).upper() == "YES"


def _pydicom() -> Any:
    try:
        import pydicom
    except ImportError:
        raise BadInput("DICOM files need the package pydicom", advice="pip install 'sfumato[dicom]'") from None
    return pydicom


def _colour(pixels: np.ndarray, photometric: str) -> np.ndarray:
    if photometric.startswith("YBR"):
        from pydicom.pixels.processing import convert_color_space

        pixels = convert_color_space(pixels, photometric, "RGB")
    return pixels


def _grey(found: Any, pixels: np.ndarray, *, inverted: bool) -> np.ndarray:
    slope, intercept = float(found.get("RescaleSlope", 1) or 1), float(found.get("RescaleIntercept", 0) or 0)
    values = pixels.astype(np.float64) * slope + intercept
    bits, signed = int(found.BitsStored), bool(found.get("PixelRepresentation", 0))
    low, high = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1) if signed else (0, 2**bits - 1)
    low, high = low * slope + intercept, high * slope + intercept
    centre, width = _first(found.get("WindowCenter")), _first(found.get("WindowWidth"))
    if centre is not None and width is not None and width > 1:
        # The linear function of the standard (PS3.3, C.11.2.1.2).
        low, high = centre - 0.5 - (width - 1) / 2, centre - 0.5 + (width - 1) / 2
    scaled = np.clip((values - low) / max(high - low, 1e-12), 0.0, 1.0)
    return 1.0 - scaled if inverted else scaled


def _first(value: Any) -> float | None:
    if value is None or value == "":
        return None
    return float(value[0] if hasattr(value, "__len__") and not isinstance(value, str) else value)
