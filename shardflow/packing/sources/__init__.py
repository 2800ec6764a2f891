"""Sources: everything that can be packed, listed in one form.

    Folder      images below a directory or URL
    Table       images that a table names
    Shards      samples of existing shards
    Collection  samples as objects

The contract is in `source`; `resolve` finds the kind of a path or an object.
"""
