"""Decoders: from encoded images to tensors, cropping included; `decoder` has their contract."""
