"""Drawn digits: a stand-in for a private collection that needs no download and raises no licence question.

Each picture is a digit of one of 22 typefaces (those inside matplotlib, and the one inside Pillow), slanted,
stretched, turned, made thicker, blurred and sprinkled with noise.
"""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont

from sfumato.data.images import Images

SIDE = 28
CLASSES = tuple(str(digit) for digit in range(10))

_FILES = (
    *(f"DejaVuSans{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSansMono{style}.ttf" for style in ("", "-Bold", "-Oblique", "-BoldOblique")),
    *(f"DejaVuSerif{style}.ttf" for style in ("", "-Bold", "-Italic", "-BoldItalic")),
    *(f"STIXGeneral{style}.ttf" for style in ("", "Bol", "Italic", "BolIta")),
    *(f"{name}10.ttf" for name in ("cmr", "cmb", "cmss", "cmti", "cmtt")),
)
# Glyphs are drawn three times as large and shrunk at the end, which smooths their edges.
_OVERSIZE = 3
_CANVAS = SIDE * _OVERSIZE
_GLYPH_HEIGHT = 20 * _OVERSIZE
_STROKES = (0, 1, 2, 3)


def draw_digits(count: int, *, seed: int) -> Images:
    """``count`` grey pictures of 28 × 28, bright on dark, with uniformly drawn digits; the same for the same seed."""
    random = np.random.default_rng(seed)
    glyphs = _glyphs()
    labels = random.integers(0, 10, count)
    fonts = random.integers(0, len(glyphs), count)
    strokes = random.integers(0, len(_STROKES), count)
    slant = random.normal(0.0, 0.15, count)
    angle = random.normal(0.0, 0.10, count)
    stretch = np.exp(random.normal(0.0, 0.10, (count, 2)))
    shift = random.normal(0.0, 0.8 * _OVERSIZE, (count, 2))
    blur = random.uniform(0.0, 0.7, count)
    contrast = random.uniform(0.75, 1.0, count)
    noise = random.uniform(0.0, 12.0, count)
    pixels = np.empty((count, 1, SIDE, SIDE), np.uint8)
    for row in range(count):
        glyph = glyphs[fonts[row]][labels[row]][strokes[row]]
        matrix = _matrix(slant[row], angle[row], stretch[row])
        picture = _place(glyph, matrix, shift[row]).filter(ImageFilter.GaussianBlur(float(blur[row]) * _OVERSIZE))
        values = np.asarray(picture.reduce(_OVERSIZE), np.float64) * contrast[row]
        values += noise[row] * random.standard_normal((SIDE, SIDE))
        pixels[row, 0] = np.clip(np.rint(values), 0, 255).astype(np.uint8)
    return Images(pixels=pixels, labels=labels.astype(np.int64), classes=CLASSES)


def _glyphs() -> list[list[list[Image.Image]]]:
    """Every digit in every typeface and thickness, centred: ``glyphs[typeface][digit][thickness]``."""
    return [[[_glyph(font, str(d), stroke) for stroke in _STROKES] for d in range(10)] for font in _typefaces()]


def _typefaces() -> list[ImageFont.FreeTypeFont]:
    # Found, not imported: matplotlib takes a while to start and only its fonts are wanted.
    spec = find_spec("matplotlib")
    if spec is None or not spec.submodule_search_locations:
        raise ImportError("drawn digits use the fonts inside matplotlib, which is not installed")
    folder = Path(spec.submodule_search_locations[0]) / "mpl-data" / "fonts" / "ttf"
    size = round(_GLYPH_HEIGHT / 0.72)
    own = ImageFont.load_default(size)
    if not isinstance(own, ImageFont.FreeTypeFont):
        raise ImportError("drawn digits need a Pillow that was built with FreeType")
    return [*(ImageFont.truetype(str(folder / name), size) for name in _FILES), own]


def _glyph(font: ImageFont.FreeTypeFont, digit: str, stroke: int) -> Image.Image:
    canvas = Image.new("L", (_CANVAS, _CANVAS))
    left, top, right, bottom = font.getbbox(digit, stroke_width=stroke)
    place = ((_CANVAS - left - right) / 2, (_CANVAS - top - bottom) / 2)
    ImageDraw.Draw(canvas).text(place, digit, fill=255, font=font, stroke_width=stroke)
    return canvas


def _matrix(slant: float, angle: float, stretch: np.ndarray) -> np.ndarray:
    """From a place in the new picture to the place in the glyph."""
    turn = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    lean = np.array([[1.0, slant], [0.0, 1.0]])
    matrix: np.ndarray = np.linalg.inv(turn @ lean @ np.diag(stretch))
    return matrix


def _place(glyph: Image.Image, matrix: np.ndarray, shift: np.ndarray) -> Image.Image:
    middle = np.array([_CANVAS / 2, _CANVAS / 2])
    offset = middle - matrix @ (middle + shift)
    (a, b), (d, e) = matrix
    affine = (a, b, offset[0], d, e, offset[1])
    return glyph.transform((_CANVAS, _CANVAS), Image.Transform.AFFINE, affine, Image.Resampling.BILINEAR)
