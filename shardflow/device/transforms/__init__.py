"""Transforms: augmentations of whole batches on a device, each sample by its own key."""
