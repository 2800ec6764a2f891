"""Transforms: augmentations of batches of images on a device, drawn per sample from the sample's key."""
