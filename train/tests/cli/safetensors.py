"""Read and write safetensors files with Python's standard library alone: a length, a JSON header and bytes. A tensor
is a tuple of dtype, shape and bytes.
"""
import json
import struct


def load(path):
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = file.read()
    header.pop("__metadata__", None)
    return {name: (entry["dtype"], entry["shape"], data[slice(*entry["data_offsets"])]) for name, entry in header.items()}


def metadata(path):
    with open(path, "rb") as file:
        return json.loads(file.read(struct.unpack("<Q", file.read(8))[0])).get("__metadata__", {})


def save(path, tensors):
    header, end = {}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps(header).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + b"".join(data for _, _, data in tensors.values()))


def save_shards(index, shards):
    """Write shards and their index; `shards`: the tensors by name, for each file name beside the index."""
    for name, tensors in shards.items():
        save(f"{index.rpartition('/')[0] or '.'}/{name}", tensors)
    weight_map = {tensor: name for name, tensors in shards.items() for tensor in tensors}
    size = sum(len(data) for tensors in shards.values() for _, _, data in tensors.values())
    with open(index, "w") as file:
        json.dump({"metadata": {"total_size": size}, "weight_map": weight_map}, file)


def widen(tensor):
    """Return the same values as f64."""
    dtype, shape, data = tensor
    assert dtype == "F32"
    values = struct.unpack(f"<{len(data) // 4}f", data)
    return "F64", shape, struct.pack(f"<{len(values)}d", *values)


def put(tensor, index, value):
    """Return the tensor with element number `index`, counted row by row, changed."""
    dtype, shape, data = tensor
    code, size = {"F64": ("<d", 8), "F32": ("<f", 4), "F16": ("<e", 2)}[dtype]
    return dtype, shape, data[: index * size] + struct.pack(code, value) + data[(index + 1) * size :]
