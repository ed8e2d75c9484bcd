"""A grid of images as one picture."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL import Image


def grid(images: np.ndarray, *, columns: int, scale: int = 1, gap: int = 2) -> Image.Image:
    """``uint8 [N, C, H, W]`` row by row, on white."""
    count, channels, height, width = images.shape
    rows = -(-count // columns)
    canvas = np.full((rows * (height + gap) + gap, columns * (width + gap) + gap, channels), 255, dtype=np.uint8)
    for index, image in enumerate(images):
        top, left = gap + index // columns * (height + gap), gap + index % columns * (width + gap)
        canvas[top : top + height, left : left + width] = np.moveaxis(image, 0, -1)
    picture = Image.fromarray(canvas[..., 0] if channels == 1 else canvas)
    return picture.resize((picture.width * scale, picture.height * scale), Image.Resampling.NEAREST)


def data_address(picture: Image.Image) -> str:
    """The picture as a ``data:`` address, so that a page needs no second file."""
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
