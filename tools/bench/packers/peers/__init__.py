"""The packers, a file each. Each has `pack`, and `pictures`, which reads back what it wrote."""
