"""What is said where an optional package is missing."""

import sys

import numpy
import pytest

from bqfd_jax import extras


def test_what_is_there_is_loaded():
    assert extras.load("numpy.linalg", "none", "this") is numpy.linalg


def test_what_is_missing_is_named_with_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError) as raised:
        extras.load("h5py", "demos", "a Minari file")
    assert str(raised.value) == (
        "a Minari file needs h5py, which is not installed: "
        "pip install -e '.[demos]' in a clone of bqfd-jax"
    )
