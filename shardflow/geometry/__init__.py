"""Crops: drawn, and applied to points, boxes, keypoints and masks. Pure: no I/O, only numpy."""
