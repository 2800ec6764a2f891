"""The numbers of all loaders' recipe. What augments is in `augmentations`: not every loader imports torchvision."""

BATCH = 64
SIZE = 224
WORKERS = 2
MEAN = (0.485, 0.456, 0.406)
STD = (0.229, 0.224, 0.225)
BUFFER = 1000
"""Samples in a shuffle buffer, where a loader has one."""
