"""The packers, a file each: `pack` packs a folder, `pictures` reads back the packed images with their names."""
