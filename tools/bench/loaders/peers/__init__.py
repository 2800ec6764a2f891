"""The loaders, a file each, with two functions.

    prepare(pictures, data)     write the pictures in the loader's own format below `data`, an empty folder; the JPEG
                                bytes are copied where the format allows it
    open_loader(data, variant)  return a function without arguments that starts an epoch: an iterator over pairs of
                                images and the numbers of their samples

Images are [B, 3, 224, 224]: normalised float32, or uint8, which the benchmark then normalises in the main process.
Workers and threads are kept from epoch to epoch wherever the library can. Libraries are imported at the top, so that
importing is not measured.
"""
