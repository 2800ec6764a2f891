"""The fixture of this folder: the two decoders of JPEGs."""

from __future__ import annotations

from tests.helpers.kernel import either_decoder

__all__ = ["either_decoder"]
