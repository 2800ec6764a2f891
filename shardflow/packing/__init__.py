"""Packing: images become a dataset: source -> jobs -> executor -> commit. Nothing here needs torch."""
