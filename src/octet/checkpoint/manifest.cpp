#include "octet/checkpoint/manifest.h"

#include <cinttypes>
#include <cstdio>
#include <iterator>
#include <utility>

#include "octet/base/checksum.h"
#include "octet/base/require.h"
#include "octet/checkpoint/safetensors.h"
#include "octet/checkpoint/untrusted.h"

namespace octet::checkpoint {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kFormat = "octet-checkpoint";
constexpr std::int64_t kVersion = 1;

std::string hex(std::uint64_t sum) {
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016" PRIx64, sum);
  return digits;
}

std::string sum_of(const Json& document) {
  const std::string text = document.dump();
  return hex(checksum(std::as_bytes(std::span(text.data(), text.size()))));
}

Json numbers(const Shape& shape) {
  Json array = Json::array();
  for (int d = 0; d < shape.rank(); ++d) array.push_back(shape[d]);
  return array;
}

// Reads the fields of a JSON object. Errors begin with `where`.
class Fields {
 public:
  Fields(std::string where, const Json& object) : where_(std::move(where)), object_(object) {
    demand(object.is_object(), ExitCode::data, where_, ": not an object");
  }

  const Json& at(const char* key) const {
    const auto found = object_.find(key);
    demand(found != object_.end(), ExitCode::data, where_, ": no ", key);
    return *found;
  }
  const Json& array(const char* key, std::size_t most) const {
    const Json& value = at(key);
    demand(value.is_array() && value.size() <= most, ExitCode::data, where_, ": ", key, " is not an array of at most ", most);
    return value;
  }
  std::string text(const char* key) const {
    const Json& value = at(key);
    demand(value.is_string(), ExitCode::data, where_, ": ", key, " is not a string");
    return value.get<std::string>();
  }
  std::int64_t number(const Json& value, const char* key) const {
    demand(value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}, ExitCode::data, where_, ": ",
           key, value.is_primitive() ? " has the value " + in_quotes(value.dump()) : std::string(" is not a number"));
    return value.get<std::int64_t>();
  }
  std::int64_t number(const char* key) const { return number(at(key), key); }

 private:
  std::string where_;
  const Json& object_;
};

StoredSlice read_slice(const Json& entry, const Shape& shape, const std::string& where) {
  const Fields fields(where, entry);
  StoredSlice stored;
  stored.file = fields.text("file");
  demand(is_file_name(stored.file), ExitCode::data, where, ": ", in_quotes(stored.file), " is not a file of this directory");
  stored.name = fields.text("name");
  for (const Json& range : fields.array("box", 4)) {
    demand(range.is_array() && range.size() == 2, ExitCode::data, where, ": a range of box is not [start, stop]");
    stored.slice.start.push_back(fields.number(range[0], "box"));
    stored.slice.stop.push_back(fields.number(range[1], "box"));
  }
  const Json& flat = fields.array("flat", 2);
  demand(flat.size() == 2, ExitCode::data, where, ": flat is not [begin, end]");
  stored.slice.begin = fields.number(flat[0], "flat");
  stored.slice.end = fields.number(flat[1], "flat");
  demand(is_within(stored.slice, shape), ExitCode::data, where, ": the slice ", stored.slice.text(), " leaves its tensor ",
         shape);

  const std::string sum = fields.text("xxh3");
  const bool is_hex = sum.size() == 16 && sum.find_first_not_of("0123456789abcdef") == std::string::npos;
  demand(is_hex, ExitCode::data, where, ": ", in_quotes(sum), " is not an XXH3 checksum");
  stored.sum = std::stoull(sum, nullptr, 16);
  return stored;
}

StoredTensor read_tensor(const Json& entry, const std::string& where) {
  const Fields fields(where, entry);
  StoredTensor tensor;
  const std::string dtype_name = fields.text("dtype");
  const std::optional<DType> dtype = dtype_named(dtype_name);
  if (!dtype) throw NewerVersion(concat(where, ": unknown dtype ", in_quotes(dtype_name), "; use a newer octet"));
  tensor.dtype = *dtype;
  for (const Json& dim : fields.array("shape", 4)) tensor.shape.push_back(fields.number(dim, "shape"));
  std::int64_t bytes = static_cast<std::int64_t>(size_of(tensor.dtype));
  bool overflow = false;
  for (int d = 0; d < tensor.shape.rank(); ++d) overflow |= __builtin_mul_overflow(bytes, tensor.shape[d], &bytes);
  demand(!overflow, ExitCode::data, where, ": shape ", tensor.shape, " overflows 64 bits");

  for (const Json& slice : fields.array("slices", SIZE_MAX)) tensor.slices.push_back(read_slice(slice, tensor.shape, where));
  return tensor;
}

std::string text_of(const StoredTensor& tensor) { return concat(name_of(tensor.dtype), " ", tensor.shape); }

void check_cover(const StoredTensor& tensor, ExitCode code, const std::string& where) {
  std::vector<Slice> slices;
  std::int64_t elements = 0;
  for (const StoredSlice& stored : tensor.slices) {
    slices.push_back(stored.slice);
    elements += stored.slice.elements();
  }
  demand(tile_exactly(tensor.shape, slices), code, where, ": its slices do not cover ", tensor.shape, " once: there are ",
         slices.size(), ", with ", elements, " of ", tensor.shape.elements(), " elements");
}

}  // namespace

Shape stored_shape(const Slice& slice) {
  const Shape box = slice.box_shape();
  return slice.elements() == box.elements() ? box : Shape{slice.elements()};
}

Manifest merge_manifests(std::vector<Manifest> parts) {
  Manifest merged = std::move(parts.at(0));
  for (std::size_t rank = 1; rank < parts.size(); ++rank) {
    demand(parts[rank].step == merged.step, ExitCode::internal, "step ", merged.step, " is step ", parts[rank].step, " on rank ",
           rank);
    for (auto& [name, part] : parts[rank].tensors) {
      const auto [place, added] = merged.tensors.try_emplace(name, std::move(part));
      if (added) continue;
      StoredTensor& tensor = place->second;
      demand(text_of(tensor) == text_of(part), ExitCode::internal, "tensor ", in_quotes(name), ": ", text_of(tensor), " is ",
             text_of(part), " on rank ", rank);
      std::move(part.slices.begin(), part.slices.end(), std::back_inserter(tensor.slices));
    }
  }
  for (const auto& [name, tensor] : merged.tensors) check_cover(tensor, ExitCode::internal, "tensor " + in_quotes(name));
  return merged;
}

std::string to_json(const Manifest& manifest) {
  require(manifest.meta.is_object(), "checkpoint: meta is not a JSON object");
  Json document;
  document["format"] = kFormat;
  document["version"] = kVersion;
  document["step"] = manifest.step;
  document["meta"] = manifest.meta;
  Json& tensors = document["tensors"] = Json::object();
  for (const auto& [name, tensor] : manifest.tensors) {
    Json slices = Json::array();
    for (const StoredSlice& stored : tensor.slices) {
      Json box = Json::array();
      for (int d = 0; d < tensor.shape.rank(); ++d) box.push_back({stored.slice.start[d], stored.slice.stop[d]});
      slices.push_back({{"file", stored.file},
                        {"name", stored.name},
                        {"box", std::move(box)},
                        {"flat", {stored.slice.begin, stored.slice.end}},
                        {"xxh3", hex(stored.sum)}});
    }
    tensors[name] = {{"dtype", name_of(tensor.dtype)}, {"shape", numbers(tensor.shape)}, {"slices", std::move(slices)}};
  }
  document["xxh3"] = sum_of(document);
  return document.dump(1) + "\n";
}

Manifest parse_manifest_part(std::string_view text, const std::string& source) {
  Json document = parse_json(text, source);
  std::string sum;
  {
    const Fields fields(source, document);
    const std::string format = fields.text("format");
    demand(format == kFormat, ExitCode::data, source, ": format ", in_quotes(format), " is not ", in_quotes(kFormat));
    const std::int64_t version = fields.number("version");
    const std::string versions = concat(source, ": version ", version, ", this program reads version ", kVersion);
    if (version > kVersion) throw NewerVersion(versions + "; use a newer octet");
    demand(version == kVersion, ExitCode::data, versions);
    sum = fields.text("xxh3");
  }
  document.erase("xxh3");
  const std::string actual = sum_of(document);
  demand(sum == actual, ExitCode::data, source, ": its XXH3 sum is ", actual, ", it says ", in_quotes(sum));

  const Fields fields(source, document);
  Manifest manifest;
  manifest.step = fields.number("step");
  manifest.meta = fields.at("meta");
  demand(manifest.meta.is_object(), ExitCode::data, source, ": meta is not an object");
  const Json& tensors = fields.at("tensors");
  demand(tensors.is_object(), ExitCode::data, source, ": tensors is not an object");
  for (const auto& [name, entry] : tensors.items()) {
    manifest.tensors.emplace(name, read_tensor(entry, source + ": tensor " + in_quotes(name)));
  }
  return manifest;
}

Manifest parse_manifest(std::string_view text, const std::string& source) {
  Manifest manifest = parse_manifest_part(text, source);
  for (const auto& [name, tensor] : manifest.tensors) check_cover(tensor, ExitCode::data, source + ": tensor " + in_quotes(name));
  return manifest;
}

}  // namespace octet::checkpoint
