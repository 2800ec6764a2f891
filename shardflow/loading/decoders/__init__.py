"""Decoders: from encoded images to tensors, cropping included. One file each; `decoder` has their contract."""
