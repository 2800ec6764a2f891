"""Views: new datasets made of the tars of others, without copying a byte of them.

index      tars that somebody else wrote, made readable
subset     some of the samples of a dataset
split      the samples of a dataset, parted into train and val
merge      several datasets as one
diff       how two datasets differ

made       what all of them publish
chosen     the records that are chosen of a shard
labels     what must be read of the tars
tars       which tars a path or pattern means
"""
