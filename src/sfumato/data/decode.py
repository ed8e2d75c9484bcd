"""How one image becomes ``uint8 [channels, height, width]``: turned upright, in one colour, cropped, resized."""

from __future__ import annotations

from dataclasses import dataclass
from typing import BinaryIO, Literal

import numpy as np
from PIL import Image

from sfumato.data.errors import BadInput, parsing

Colour = Literal["grey", "rgb"]
Crop = Literal["centre", "none"]

PIXEL_LIMIT = 64_000_000
"""An image that claims more pixels than this is refused before it is decoded."""

# Above this Pillow itself refuses.
_DECODER_LIMIT = 178_000_000
_FORMATS = ("PNG", "JPEG", "BMP", "GIF", "TIFF", "WEBP", "PPM")
_ORIENTATION = 0x0112
_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
_DEEP = ("I", "I;16", "I;16L", "I;16B", "I;16N")
_CLEAR = ("RGBA", "LA", "PA", "La", "RGBa")

_NOT_AN_IMAGE = "an image cannot be decoded: it is truncated, damaged or not an image"
_SKIP = "Repair or remove it, or leave such records out with skip_bad=True (--skip-bad)."


@dataclass(frozen=True)
class ImageTransform:
    """The public shape every image is brought to.

    ``size`` is the side of a square or (height, width); None takes images as they are, and they must agree.
    ``crop`` is "centre" (the largest centred part of the right proportions), "none" (the whole image, squeezed) or
    a number (the centred square of so many pixels). ``colour`` is "grey" or "rgb"; None takes the first image's.
    ``bits`` says how many of 16 the grey values of deep images use: 12 for most scanners.
    """

    size: int | tuple[int, int] | None = None
    crop: Crop | int = "centre"
    colour: Colour | None = None
    pixel_limit: int = PIXEL_LIMIT
    bits: int = 16

    def __post_init__(self) -> None:
        sides = () if self.size is None else (self.size,) if isinstance(self.size, int) else self.size
        if any(side < 1 for side in sides) or len(sides) > 2:
            raise ValueError(f"size must be a positive number or (height, width), not {self.size!r}")
        if self.crop not in ("centre", "none") and not (isinstance(self.crop, int) and self.crop > 0):
            raise ValueError(f'crop must be "centre", "none" or a positive number of pixels, not {self.crop!r}')
        if self.colour not in ("grey", "rgb", None):
            raise ValueError(f'colour must be "grey", "rgb" or None, not {self.colour!r}')
        if not 8 <= self.bits <= 16:
            raise ValueError(f"bits must lie from 8 to 16, not {self.bits}")
        if not 1 <= self.pixel_limit <= _DECODER_LIMIT:
            raise ValueError(f"pixel_limit must lie from 1 to {_DECODER_LIMIT:,}, not {self.pixel_limit:,}")

    def decode(self, file: BinaryIO, *, name: str = "") -> np.ndarray:
        """The image in an encoded file."""
        with parsing(_NOT_AN_IMAGE, advice=_SKIP, name=name):
            try:
                image = Image.open(file, formats=_FORMATS)
            except Image.DecompressionBombError:
                raise self._too_large(name) from None
            self._check_area(*image.size, name=name)
            image.load()
            return self.convert(image)

    def convert(self, image: Image.Image) -> np.ndarray:
        turn = _UPRIGHT.get(image.getexif().get(_ORIENTATION, 1))
        upright = image if turn is None else image.transpose(turn)
        return self._finish(_eight_bits(upright, self.bits))

    def fit(self, array: np.ndarray, *, name: str = "") -> np.ndarray:
        """The image in an array ``[H, W]``, ``[H, W, C]`` or ``[C, H, W]`` of any numeric kind."""
        self._check_area(array.shape[-1], array.size // max(1, array.shape[-1]), name=name)
        pixels = _bytes_of(array, name=name, bits=self.bits)
        if pixels.ndim == 3 and pixels.shape[0] not in (1, 3) and pixels.shape[-1] in (1, 3):
            pixels = np.moveaxis(pixels, -1, 0)
        pixels = pixels[None] if pixels.ndim == 2 else pixels
        if pixels.ndim != 3 or pixels.shape[0] not in (1, 3) or 0 in pixels.shape:
            raise BadInput(
                "an image array must be height × width with one or three channels",
                advice="Save images as [N, H, W], [N, H, W, C] or [N, C, H, W] with C = 1 or 3.",
                detail=f"{name}: shape {array.shape}",
            )
        same_colour = self.colour is None or (self.colour == "grey") == (len(pixels) == 1)
        if self.size is None and self.crop in ("centre", "none") and same_colour:
            return np.ascontiguousarray(pixels)
        image = Image.fromarray(np.ascontiguousarray(pixels[0] if len(pixels) == 1 else np.moveaxis(pixels, 0, -1)))
        return self._finish(image)

    def _check_area(self, width: int, height: int, *, name: str) -> None:
        if width * height > self.pixel_limit:
            raise self._too_large(name)

    def _too_large(self, name: str) -> BadInput:
        return BadInput(
            f"an image claims more than {self.pixel_limit:,} pixels",
            advice="Scale it down first, raise pixel_limit if it is meant, or use skip_bad=True (--skip-bad).",
            detail=name,
        )

    def _finish(self, image: Image.Image) -> np.ndarray:
        """Colour, crop and size of an 8-bit L or RGB image. The resize is antialiased."""
        if self.colour is not None:
            image = image.convert("L" if self.colour == "grey" else "RGB")
        width, height = image.size
        tall, wide = (height, width) if self.size is None else _pair(self.size)
        part_width, part_height = width, height
        if isinstance(self.crop, int):
            if self.crop > min(width, height):
                raise BadInput(
                    f"an image is smaller than the {self.crop} pixels to be cropped from it",
                    advice="Give a smaller crop, or leave such records out with skip_bad=True (--skip-bad).",
                )
            part_width = part_height = self.crop
            tall, wide = (self.crop, self.crop) if self.size is None else (tall, wide)
        elif self.crop == "centre":
            scale = min(width / wide, height / tall)
            part_width, part_height = max(1, round(wide * scale)), max(1, round(tall * scale))
        left, top = (width - part_width) // 2, (height - part_height) // 2
        # Cut first: a resize that is only given the box also looks at what lies around it.
        if (part_width, part_height) != (width, height):
            image = image.crop((left, top, left + part_width, top + part_height))
        if (wide, tall) != (part_width, part_height):
            image = image.resize((wide, tall), Image.Resampling.BICUBIC)
        pixels = np.asarray(image)
        return np.ascontiguousarray(pixels[None] if pixels.ndim == 2 else np.moveaxis(pixels, -1, 0))


def _pair(size: int | tuple[int, int]) -> tuple[int, int]:
    return (size, size) if isinstance(size, int) else size


def _eight_bits(image: Image.Image, bits: int) -> Image.Image:
    """Any mode as 8-bit L or RGB: deep grey scaled, palettes and CMYK resolved, what is clear laid over white."""
    if image.mode in ("L", "RGB"):
        return image
    if image.mode in _DEEP or image.mode == "F":
        values = np.asarray(image)
        if image.mode in _DEEP and values.dtype != np.uint16:
            if values.min() < 0 or values.max() > 65535:
                raise BadInput(
                    "a grey image has more than 16 bits",
                    advice="Save it with 8 or 16 bits a pixel, or leave it out with skip_bad=True (--skip-bad).",
                )
            values = values.astype(np.uint16)
        return Image.fromarray(_bytes_of(values, name="", bits=bits))
    if image.mode in _CLEAR or "transparency" in image.info:
        clear = image.convert("RGBA")
        ground = Image.new("RGBA", clear.size, "white")
        flat = Image.alpha_composite(ground, clear)
        return flat.convert("L" if image.mode in ("LA", "La") else "RGB")
    return image.convert("L" if image.mode == "1" else "RGB")


def _bytes_of(array: np.ndarray, *, name: str, bits: int) -> np.ndarray:
    """Pixel values as 0..255 by the constants of their type and ``bits``, never by the range found in the data."""
    kind = array.dtype
    if kind == np.uint8:
        return array
    if kind == np.bool_:
        return array.astype(np.uint8) * np.uint8(255)
    if kind == np.uint16:
        highest = 2**bits - 1
        return ((np.minimum(array, highest).astype(np.uint32) * 255 + highest // 2) // highest).astype(np.uint8)
    if np.issubdtype(kind, np.floating):
        if not np.isfinite(array).all() or array.min(initial=0) < 0 or array.max(initial=0) > 1:
            raise BadInput(
                "floating-point pixels must be finite numbers from 0 to 1",
                advice="Remove NaN and infinities and scale to 0..1, or save as uint8; or use skip_bad (--skip-bad).",
                detail=name,
            )
        return np.rint(array * 255).astype(np.uint8)
    if np.issubdtype(kind, np.integer):
        if array.min(initial=0) < 0 or array.max(initial=0) > 255:
            raise BadInput(
                "whole-number pixels must lie from 0 to 255 (uint16: 0 to 65535)",
                advice="Save images as uint8 or uint16, or use skip_bad=True (--skip-bad).",
                detail=name,
            )
        return array.astype(np.uint8)
    raise BadInput("pixels must be numbers", advice="Save images as uint8.", detail=f"{name}: {kind}")
