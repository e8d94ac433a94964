"""Compares `octet quantize` with ml_dtypes for every BF16 and FP16 value, and for FP32 values around every rounding boundary."""

import json
import pathlib
import struct
import subprocess
import sys
import tempfile

import ml_dtypes
import numpy as np

BF16 = ml_dtypes.bfloat16
FORMATS = {"activation": (ml_dtypes.float8_e4m3fn, 448.0, "F8_E4M3"), "gradient": (ml_dtypes.float8_e5m2, 57344.0, "F8_E5M2")}
DTYPES = {"F32": np.float32, "F16": np.float16, "BF16": BF16, "F8_E4M3": np.uint8, "F8_E5M2": np.uint8, "U8": np.uint8}


def save(path, tensors):
    names = {np.dtype(np.float32): "F32", np.dtype(np.float16): "F16", np.dtype(BF16): "BF16"}
    header, data = {}, b""
    for name, array in tensors.items():
        raw = array.tobytes()
        header[name] = {"dtype": names[array.dtype], "shape": list(array.shape), "data_offsets": [len(data), len(data) + len(raw)]}
        data += raw
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def load(path):
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    result = {}
    for name, entry in header.items():
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        result[name] = np.frombuffer(raw[begin:end], DTYPES[entry["dtype"]]).reshape(entry["shape"])
        result[name, "dtype"] = entry["dtype"]
    return result


def encode(x, fp8, largest):
    """Rounds FP32 to nearest even and saturates. NaN becomes 0x7F."""
    codes = np.clip(x, -largest, largest).astype(fp8).view(np.uint8)
    return np.where(np.isnan(x), np.uint8(0x7F), codes)


def main(octet):
    patterns = np.arange(65536, dtype=np.uint16)
    high = np.repeat(patterns.astype(np.uint32) << 16, 6)
    around = high | np.tile(np.array([0, 1, 0x7FFF, 0x8000, 0x8001, 0xFFFF], np.uint32), 65536)
    sources = {
        "bf16": patterns.view(BF16).reshape(256, 256),
        "f16": patterns.view(np.float16).reshape(512, 128),
        "f32": around.view(np.float32).reshape(1536, 256),
    }
    checked = 0
    with tempfile.TemporaryDirectory() as folder, np.errstate(all="ignore"):
        folder = pathlib.Path(folder)
        save(folder / "in", sources)
        for role, (fp8, largest, dtype) in FORMATS.items():
            for scale in ["1", "0.37", "448", "1e-40", "3.4028234663852886e38", "1.1754943508222875e-38", "1e20"]:
                subprocess.run([octet, "quantize", "--input", folder / "in", "--recipe", "fp8_delayed", "--role", role,
                                "--scale", scale, "--output", folder / "out"], check=True)
                out = load(folder / "out")
                for name, source in sources.items():
                    x = source.astype(np.float32).astype(BF16).astype(np.float32)
                    expected = encode(x * np.float32(scale), fp8, largest)
                    actual = out[name + ".codes"]
                    wrong = np.argwhere(actual != expected)
                    assert not len(wrong), (
                        f"{role} scale {scale} {name}{list(wrong[0])}: {source[tuple(wrong[0])]!r} became {actual[tuple(wrong[0])]:#x}, "
                        f"not {expected[tuple(wrong[0])]:#x}")
                    assert out[name + ".codes", "dtype"] == dtype
                    assert np.array_equal(out[name + ".codes_t"], expected.T)
                    assert out[name + ".scale_inv"].tobytes() == np.array([1], np.float32).__truediv__(np.float32(scale)).tobytes()
                    checked += expected.size

        # E8M0: there is a block of 32 equal values for each BF16 magnitude.
        magnitudes = np.repeat(patterns[:32768].view(BF16), 32).reshape(32768, 32)
        save(folder / "in", {"x": magnitudes})
        subprocess.run([octet, "quantize", "--input", folder / "in", "--recipe", "mxfp8", "--role", "weight", "--output", folder / "out"],
                       check=True)
        codes = load(folder / "out")["x.scale_inv"][:, 0]
        ratio = magnitudes[:, 0].astype(np.float32) * (np.float32(1) / np.float32(448))
        values = codes.view(ml_dtypes.float8_e8m0fnu).astype(np.float64)
        for code, value, r in zip(codes, values, ratio.astype(np.float64)):
            if np.isnan(r):
                assert code == 0xFF and np.isnan(value)
            elif np.isinf(r):
                assert code == 0xFE
            else:  # the smallest power of two that is not below the ratio; 2^-127 is the smallest of all
                assert value >= r and (code == 0 or value / 2 < r), (code, value, r)
        checked += len(codes)
    print(f"float8: {checked} values agree with ml_dtypes")


if __name__ == "__main__":
    main(sys.argv[1])
