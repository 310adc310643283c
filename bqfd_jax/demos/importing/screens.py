"""From the console's screens to what the agents see, as envpool does it, in numpy.

Grey by the emulator's own formula (no difference found), the maximum of two grey screens, then
means over areas.  Against envpool's frames no pixel differs by more than 1 of 255.
"""

import functools
import io

import numpy as np

from bqfd_jax import extras
from bqfd_jax.demos.schema import DemonstrationError
from bqfd_jax.envs.atari import FRAME_SHAPE

SCREEN_SHAPE = (210, 160)
MAX_BYTES = 2**18  # of a picture; screens take a few kilobytes, and whatever is larger is none
_LUMA = np.array([0.2989, 0.587, 0.114])


def to_grey(screen: np.ndarray) -> np.ndarray:
    """A screen's brightness, `[210, 160, 3]` uint8 -> `[210, 160]` uint8; grey ones stay."""
    if screen.ndim == 2:
        return screen
    return np.rint(screen.astype(np.float64) @ _LUMA).astype(np.uint8)


def shrink(grey: np.ndarray) -> np.ndarray:
    """`[210, 160]` uint8 -> `[84, 84]` uint8: the mean over the area of every new pixel."""
    rows, columns = (
        _area_weights(old, new) for old, new in zip(SCREEN_SHAPE, FRAME_SHAPE, strict=True)
    )
    return np.rint(rows @ grey.astype(np.float32) @ columns.T).clip(0, 255).astype(np.uint8)


@functools.cache
def _area_weights(old: int, new: int) -> np.ndarray:
    """How much of each old pixel lies in each new one, `[new, old]`; rows sum to 1."""
    scale = old / new
    begin = np.arange(new)[:, None] * scale
    pixel = np.arange(old)[None]
    overlap = np.minimum(begin + scale, pixel + 1) - np.maximum(begin, pixel)
    return (overlap.clip(0) / scale).astype(np.float32)


def decode_screen(data: bytes, where: str) -> np.ndarray:
    """A picture file's grey screen; `where` names it in errors."""
    pillow = extras.load("PIL.Image", "demos", "a picture")
    try:
        # Pillow has readers of other formats that start programs.
        with pillow.open(io.BytesIO(data), formats=("PNG", "JPEG")) as picture:
            width, height = picture.size
            if (height, width) != SCREEN_SHAPE:
                raise DemonstrationError(
                    f"{where} is {height} x {width}, but screens are 210 x 160"
                )
            screen = np.asarray(picture if picture.mode == "L" else picture.convert("RGB"))
    except DemonstrationError:
        raise
    # Whatever damaged pictures make Pillow raise.
    except Exception as error:
        raise DemonstrationError(f"{where} is no picture that can be read: {error}") from error
    return to_grey(screen)
