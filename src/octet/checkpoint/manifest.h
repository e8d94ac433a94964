// manifest.json of a checkpoint: what a directory checkpoints/step-00001000/ holds. Written last, so that its presence says that
// the rest is there.
//   {"format": "octet-checkpoint", "version": 1, "step": 1000,
//    "tensors": {NAME: {"dtype": "F32", "shape": [..],
//                       "slices": [{"file", "name", "box": [[start, stop], ..], "flat": [begin, end], "xxh3": "16 hex digits"},
//                       ..]}, ..},
//    "meta": {..}, "xxh3": "of the rest of this document, as compact JSON with sorted keys"}
// A slice lies in `file` under `name`: in the shape of its box when it is all of it, otherwise with one dim. `xxh3` is XXH3-64
// (seed 0) of its bytes. The slices of a tensor cover it, each element once; a tensor without elements may have none.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "octet/base/json.h"
#include "octet/checkpoint/slice.h"
#include "octet/tensor/dtype.h"
#include "octet/tensor/shape.h"

namespace octet::checkpoint {

constexpr const char* kManifestName = "manifest.json";

struct StoredSlice {
  std::string file;  // in the directory of the manifest
  std::string name;  // in that file
  Slice slice;
  std::uint64_t sum = 0;
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

// The shape under which a slice lies in its file.
Shape stored_shape(const Slice& slice);

// What ranks have written of one checkpoint, as one manifest with the first part's meta. Throws Error{internal} with the
// tensor's name where the parts differ over its dtype or shape, or where all slices together do not cover it once; no tensor
// where they are of different steps.
Manifest merge_manifests(std::vector<Manifest> parts);

std::string to_json(const Manifest& manifest);
// Throws Error{data}, one line "SOURCE: ..." with the tensor and the value, for anything that is not such a manifest: a wrong sum
// included, and slices that leave their tensor, overlap or do not cover it, and files outside the directory.
Manifest parse_manifest(std::string_view text, const std::string& source);
// The same for what one rank has written: slices that do not cover their tensor are let pass.
Manifest parse_manifest_part(std::string_view text, const std::string& source);

}  // namespace octet::checkpoint
