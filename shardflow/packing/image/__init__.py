"""Image: one image on its way into a shard: decode, convert colours, resize, encode."""
