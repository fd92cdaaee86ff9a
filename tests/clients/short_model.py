"""The first layer of a model alone, with a long context: `python short_model.py MODEL.gguf OUT.gguf`.

What it says is nonsense, in its model's tokens and by its chat template: for tests that put the words in its mouth.
"""

import sys

import gguf

CONTEXT = 65536


def main():
    reader = gguf.GGUFReader(sys.argv[1])
    arch = reader.fields["general.architecture"].contents()
    changed = {f"{arch}.block_count": 1, f"{arch}.context_length": CONTEXT}
    writer = gguf.GGUFWriter(sys.argv[2], arch)
    for name, field in reader.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        kind, *of = field.types
        value = changed.get(name, field.contents())
        writer.add_key_value(name, value, kind, of[-1] if of else None)
    for tensor in reader.tensors:
        if not tensor.name.startswith("blk.") or tensor.name.startswith("blk.0."):
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
