"""What is written to files to be read again, believing nothing: `packing` makes JSON of values, `tensor_file` files of
tensors, `checksums` finds damage in them, and `sealing` in the record that names them.
"""

__all__: list[str] = []
