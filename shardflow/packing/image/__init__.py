"""The processing of one image for a shard: decode, orient, convert colours, resize, encode."""
