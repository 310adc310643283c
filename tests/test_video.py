"""Films can be read back, and are whole or not there."""

import av
import numpy as np
import pytest

from bqfd_jax.runs import video


def frames(count, height=21, width=16):
    """A bright bar that wanders down."""
    for t in range(count):
        frame = np.zeros((height, width, 3), np.uint8)
        frame[t % height] = (250, 10, 10)
        yield frame


def write(path, images, **options):
    with video.Mp4(path, **options) as film:
        for image in images:
            film.add(image)
    return path


def test_a_film_shows_the_frames_that_were_given(tmp_path):
    path = write(tmp_path / "film.mp4", frames(12), fps=15, scale=4)
    with av.open(str(path)) as container:
        stream = container.streams.video[0]
        assert float(stream.average_rate) == 15
        shown = [frame.to_ndarray(format="rgb24") for frame in container.decode(stream)]
    assert len(shown) == 12
    assert shown[0].shape == (84, 64, 3)
    for t, image in enumerate(shown):
        red = image[..., 0].reshape(21, 4, 64).mean((1, 2))
        assert red.argmax() == t
    assert list(tmp_path.iterdir()) == [path]


def test_grey_frames_and_odd_sizes(tmp_path):
    grey = [np.full((7, 9), 100, np.uint8)] * 3
    with av.open(str(write(tmp_path / "grey.mp4", grey))) as container:
        image = next(container.decode(video=0)).to_ndarray(format="rgb24")
    assert image.shape == (8, 10, 3)
    assert abs(image.astype(int) - 100).max() < 10


def test_nothing_is_left_of_a_film_that_failed(tmp_path):
    def broken():
        yield from frames(3)
        raise RuntimeError("the game is gone")

    with pytest.raises(RuntimeError, match="gone"):
        write(tmp_path / "film.mp4", broken())
    with pytest.raises(ValueError, match="no frames"):
        write(tmp_path / "film.mp4", [])
    assert list(tmp_path.iterdir()) == []


def test_a_frame_from_the_middle_is_read_back(tmp_path):
    with video.Mp4(tmp_path / "film.mp4") as film:
        for shade in (0, 0, 200, 0, 0):
            film.add(np.full((16, 20), shade, np.uint8))
    frame = video.middle_frame(tmp_path / "film.mp4")
    assert frame.shape == (16, 20, 3)
    assert 180 < frame.mean() < 220
    (tmp_path / "no.mp4").write_bytes(b"no film")
    assert video.middle_frame(tmp_path / "no.mp4") is None
    assert video.middle_frame(tmp_path / "nowhere.mp4") is None
