"""Geometry: crops, drawn and applied to points, boxes, keypoints and masks. No I/O, only numpy."""
