"""`octet quantize` and Python's safetensors must read each other's files."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np
from safetensors import deserialize
from safetensors.numpy import save, save_file

DTYPES = {
    "F32": np.float32,
    "U8": np.uint8,
    "BF16": ml_dtypes.bfloat16,
    "F8_E4M3": ml_dtypes.float8_e4m3fn,
    "F8_E5M2": ml_dtypes.float8_e5m2,
}


def quantize(octet, source, output, *arguments, expect=0):
    command = [octet, "quantize", "--input", source, "--output", output, *arguments]
    done = subprocess.run([str(part) for part in command], capture_output=True, text=True)
    assert done.returncode == expect, (command, done.returncode, done.stdout, done.stderr)
    return done.stderr


def read(path):
    """Reads a file with Python's package, and checks its header and layout without it."""
    data = path.read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    assert length % 8 == 0, (path, length)
    header = json.loads(data[8 : 8 + length])
    tensors = {}
    for name, view in deserialize(data):
        dtype = np.dtype(DTYPES[view["dtype"]])
        begin, end = header[name]["data_offsets"]
        assert begin % dtype.itemsize == 0, (path, name, begin)
        tensors[name] = np.frombuffer(view["data"], dtype).reshape(view["shape"])
        assert tensors[name].tobytes() == data[8 + length + begin : 8 + length + end], (path, name)
    metadata = header.get("__metadata__")
    assert save(tensors, metadata) == data, f"{path}: Python writes the same tensors as other bytes"
    return tensors


def tiles(count):
    return -(-count // 128)


def expected_shapes(recipe, rows, cols):
    """Returns the shapes of scale_inv and scale_inv_t of an activation [rows, cols]."""
    return {
        "fp8_current": ((1,), (1,)),
        "fp8_rowwise": ((rows, 1), (cols, 1)),
        "fp8_block": ((rows, tiles(cols)), (cols, tiles(rows))),
        "mxfp8": ((rows, -(-cols // 32)), (cols, -(-rows // 32))),
    }[recipe]


def check_outputs(octet, folder):
    random = np.random.default_rng(11)
    inputs = {
        "float": random.standard_normal((48, 160)).astype(np.float32),
        "a name é": random.standard_normal((16, 32)).astype(ml_dtypes.bfloat16),
        "half": random.standard_normal((144, 16)).astype(np.float16),
    }
    source = folder / "in.safetensors"
    save_file(inputs, source, {"format": "np"})
    for recipe in ("fp8_current", "fp8_rowwise", "fp8_block", "mxfp8"):
        output = folder / f"{recipe}.safetensors"
        quantize(octet, source, output, "--recipe", recipe, "--role", "activation")
        tensors = read(output)
        for name, x in inputs.items():
            rows, cols = x.shape
            scale, scale_t = expected_shapes(recipe, rows, cols)
            for suffix, shape in {"codes": (rows, cols), "codes_t": (cols, rows), "scale_inv": scale, "scale_inv_t": scale_t}.items():
                actual = tensors.pop(f"{name}.{suffix}")
                assert actual.shape == shape, (recipe, name, suffix, actual.shape, shape)
        assert not tensors, (recipe, list(tensors))
    left = sorted(path.name for path in folder.iterdir())
    assert not [name for name in left if "tmp" in name], left


def check_same_input(octet, folder):
    """Files that differ only in the layout of the same tensor must give the same output."""
    x = np.random.default_rng(12).standard_normal((32, 64)).astype(np.float32)
    plain, unaligned = folder / "plain.safetensors", folder / "unaligned.safetensors"
    save_file({"x": x}, plain)
    header = json.dumps({"x": {"shape": [32, 64], "dtype": "F32", "data_offsets": [0, x.nbytes]}}).encode()
    header += b" " * (-len(header) % 8 + 3)
    unaligned.write_bytes(struct.pack("<Q", len(header)) + header + x.tobytes())
    outputs = []
    for source in (plain, unaligned):
        outputs.append(folder / f"{source.stem}.out.safetensors")
        quantize(octet, source, outputs[-1], "--recipe", "fp8_current", "--role", "activation")
    assert outputs[0].read_bytes() == outputs[1].read_bytes()


def check_refusals(octet, folder):
    good = (folder / "plain.safetensors").read_bytes()
    broken = {
        "empty": b"",
        "cut": good[:-1],
        "longer": good + b"x",
        "length": struct.pack("<Q", 1 << 63) + good[8:],
        "text": b"this is no safetensors file",
    }
    for name, data in broken.items():
        source = folder / f"{name}.safetensors"
        source.write_bytes(data)
        output = folder / f"{name}.out.safetensors"
        error = quantize(octet, source, output, "--recipe", "fp8_current", "--role", "activation", expect=76)
        assert str(source) in error and len(error.strip().splitlines()) == 1, error
        assert not output.exists(), output


def main():
    octet = sys.argv[1]
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        check_outputs(octet, folder)
        check_same_input(octet, folder)
        check_refusals(octet, folder)
    print("safetensors: Octet and Python read each other's files")


main()
