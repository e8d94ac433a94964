// The manifest.json of a checkpoint lists what a directory checkpoints/step-00001000/ holds. It is written last, so a directory with a
// manifest is complete.
//   {"format": "octet-checkpoint", "version": 1, "step": 1000,
//    "tensors": {NAME: {"dtype": "F32", "shape": [..],
//                       "slices": [{"file", "name", "box": [[start, stop], ..], "flat": [begin, end], "xxh3": "16 hex digits"},
//                       ..]}, ..},
//    "meta": {..}, "xxh3": "of the rest of this document, as compact JSON with sorted keys"}
// A slice is the tensor `name` of the safetensors file `file`. If the slice is a whole box, the tensor has the shape of the box;
// otherwise it has one dim. `xxh3` is the XXH3-64 (seed 0) of its bytes. The slices of a tensor cover each of its elements exactly once.
// A tensor without elements may have no slices.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json.h"
#include "octet/base/require.h"
#include "octet/checkpoint/slice.h"
#include "octet/tensor/dtype.h"
#include "octet/tensor/shape.h"

namespace octet::checkpoint {

constexpr const char* kManifestName = "manifest.json";

struct StoredSlice {
  std::string file;  // file name in the directory of the manifest
  std::string name;  // tensor name in this file
  Slice slice;
  std::uint64_t sum = 0;  // XXH3-64 of the slice's bytes
};

struct StoredTensor {
  DType dtype = DType::f32;
  Shape shape;
  std::vector<StoredSlice> slices;
};

struct Manifest {
  std::int64_t step = 0;
  std::map<std::string, StoredTensor> tensors;
  nlohmann::json meta = nlohmann::json::object();
};

// The shape of a slice in its file.
Shape stored_shape(const Slice& slice);

// Merges the parts that the ranks wrote into a manifest. Keeps the meta of the first part. Throws Error{internal} if the parts have
// different steps, or if a tensor has different dtypes or shapes in two parts or its slices do not cover it exactly once.
Manifest merge_manifests(std::vector<Manifest> parts);

// A manifest was written by a later version of Octet. The checkpoint may be sound, but this program cannot read it.
class NewerVersion : public Error {
 public:
  explicit NewerVersion(const std::string& message) : Error(ExitCode::data, message) {}
};

std::string to_json(const Manifest& manifest);
// Parses and checks a manifest. Throws Error{data}, one line "SOURCE: ..." that names the tensor and the value, for a malformed
// manifest, a wrong checksum, a file outside the directory, and slices that leave their tensor or do not cover it exactly once.
// Throws NewerVersion for a later version, and for a dtype that this program does not know.
Manifest parse_manifest(std::string_view text, const std::string& source);
// Parses the part of one rank. Unlike parse_manifest(), it does not demand that slices cover their tensors.
Manifest parse_manifest_part(std::string_view text, const std::string& source);

}  // namespace octet::checkpoint
