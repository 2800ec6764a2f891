"""Batches on a device: copied there while the training step runs, and augmented there."""
