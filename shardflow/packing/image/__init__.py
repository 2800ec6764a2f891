"""One image on its way into a shard: decode, orient, convert colours, resize, encode."""
