"""The loaders under test, one file each.

Every file has the same two functions, and imports its library at the top, so that importing is not measured:

    prepare(pictures, data)     write the pictures in the loader's own format below `data`, which is new; the JPEG bytes
                                are copied where the format allows it
    open_loader(data, variant)  return a function without arguments that starts an epoch: an iterator over pairs of
                                images and the numbers of the samples they are

Images are [B, 3, 224, 224]: normalised float32, or uint8, which the benchmark then normalises in the main process.
Workers and threads are kept from epoch to epoch wherever the library can.
"""
