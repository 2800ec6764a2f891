"""The device's side: batches are copied while the training step runs, and arithmetic on images happens there."""
