"""The loaders, a file each: `open_loader(place, variant)` returns what starts an epoch.

An epoch yields batches of images, uint8 [B, 3, 224, 224], and the numbers of their samples.
"""
