"""Loading: from shards to batches of tensors. The room where torch and webdataset live."""
