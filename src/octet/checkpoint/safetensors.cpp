#include "octet/checkpoint/safetensors.h"

#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "octet/base/require.h"
#include "octet/base/system_call.h"
#include "octet/checkpoint/untrusted.h"
#include "octet/telemetry/rank_page.h"

namespace octet::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "data are stored as they are in memory, in little-endian order");

constexpr std::size_t kLengthBytes = 8;
constexpr std::uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the reference implementation
constexpr int kHeaderDepth = 3;                         // {name: {shape: []}}
constexpr std::string_view kMetadataKey = "__metadata__";

struct FormatDType {
  std::string_view name;
  int bits;
  std::optional<DType> dtype;
};
// In the order in which the Python package safetensors writes them.
constexpr FormatDType kFormatDTypes[] = {
    {"U64", 64, {}},
    {"I64", 64, DType::i64},
    {"F64", 64, DType::f64},
    {"C64", 64, {}},
    {"F32", 32, DType::f32},
    {"U32", 32, {}},
    {"I32", 32, DType::i32},
    {"BF16", 16, DType::bf16},
    {"F16", 16, DType::f16},
    {"U16", 16, {}},
    {"I16", 16, {}},
    {"F8_E4M3FNUZ", 8, {}},
    {"F8_E5M2FNUZ", 8, {}},
    {"F8_E8M0", 8, {}},
    {"F8_E4M3", 8, DType::f8_e4m3},
    {"F8_E5M2", 8, DType::f8_e5m2},
    {"I8", 8, {}},
    {"U8", 8, DType::u8},
    {"F6_E3M2", 6, {}},
    {"F6_E2M3", 6, {}},
    {"F4", 4, {}},
    {"BOOL", 8, {}},
};

const FormatDType* find_dtype(std::string_view name) {
  for (const FormatDType& candidate : kFormatDTypes) {
    if (candidate.name == name) return &candidate;
  }
  return nullptr;
}

// Reads the header's entry for a tensor. Errors begin with `where_`.
class EntryReader {
 public:
  EntryReader(const std::string& source, const std::string& name, const nlohmann::json& entry)
      : where_(source + ": tensor " + in_quotes(name)), entry_(entry) {}

  TensorInfo read(const std::string& name, std::size_t data_bytes) const {
    demand(entry_.is_object(), ExitCode::data, where_, ": not an object but ", shown(entry_));
    for (const auto& [key, value] : entry_.items()) {
      demand(key == "dtype" || key == "shape" || key == "data_offsets", ExitCode::data, where_, ": unknown field ",
             in_quotes(key));
    }
    TensorInfo info;
    info.name = name;
    const nlohmann::json& dtype = field("dtype");
    demand(dtype.is_string(), ExitCode::data, where_, ": dtype is ", shown(dtype));
    info.dtype_name = dtype.get<std::string>();
    const FormatDType* known = find_dtype(info.dtype_name);
    demand(known != nullptr, ExitCode::data, where_, ": unknown dtype ", in_quotes(info.dtype_name));
    info.dtype = known->dtype;

    const std::uint64_t bytes = read_shape(info, static_cast<std::uint64_t>(known->bits));
    const nlohmann::json& offsets = field("data_offsets");
    demand(offsets.is_array() && offsets.size() == 2, ExitCode::data, where_, ": data_offsets is ", shown(offsets));
    const std::uint64_t begin = number(offsets[0], "data offset"), end = number(offsets[1], "data offset");
    demand(begin <= end && end <= data_bytes, ExitCode::data, where_, ": data offsets [", begin, ", ", end, ") in a file with ",
           data_bytes, " bytes of data");
    demand(end - begin == bytes, ExitCode::data, where_, ": ", info.dtype_name, " ", info.shape_text(), " needs ", bytes,
           " bytes, its data offsets [", begin, ", ", end, ") hold ", end - begin);
    info.begin = begin;
    info.end = end;
    return info;
  }

 private:
  const nlohmann::json& field(const char* key) const {
    const auto found = entry_.find(key);
    demand(found != entry_.end(), ExitCode::data, where_, ": no ", key);
    return *found;
  }

  std::uint64_t number(const nlohmann::json& value, std::string_view what) const {
    demand(value.is_number_unsigned() && value.get<std::uint64_t>() <= std::uint64_t{INT64_MAX}, ExitCode::data, where_, ": ",
           what, " ", shown(value));
    return value.get<std::uint64_t>();
  }

  // Fills info.dims and returns the number of bytes of the tensor.
  std::uint64_t read_shape(TensorInfo& info, std::uint64_t bits_per_element) const {
    const nlohmann::json& shape = field("shape");
    demand(shape.is_array(), ExitCode::data, where_, ": shape is ", shown(shape));
    std::uint64_t bits = bits_per_element;
    bool overflow = false;
    for (const nlohmann::json& dim : shape) {
      const std::uint64_t extent = number(dim, "dim");
      info.dims.push_back(static_cast<std::int64_t>(extent));
      overflow |= __builtin_mul_overflow(bits, extent, &bits);
    }
    demand(!overflow, ExitCode::data, where_, ": shape ", info.shape_text(), " overflows 64 bits");
    demand(bits % 8 == 0, ExitCode::data, where_, ": ", info.dtype_name, " ", info.shape_text(),
           " is not a whole number of bytes");
    return bits / 8;
  }

  static std::string shown(const nlohmann::json& value) {
    if (value.is_structured()) return value.is_object() ? "an object" : concat("an array of ", value.size());
    return value.is_string() ? in_quotes(value.get_ref<const std::string&>()) : value.dump();
  }

  std::string where_;
  const nlohmann::json& entry_;
};

Metadata read_metadata(const nlohmann::json& object, const std::string& source) {
  demand(object.is_object(), ExitCode::data, source, ": ", kMetadataKey, " is not an object");
  Metadata metadata;
  for (const auto& [key, value] : object.items()) {
    demand(value.is_string(), ExitCode::data, source, ": ", kMetadataKey, " ", in_quotes(key), " is not a string");
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

// Builds the header as text, because the entries must be in the order of the data. The JSON library's ordered object would need a linear
// search for every tensor.
std::string header_text(const std::vector<TensorDeclaration>& tensors, const Metadata& metadata, std::size_t& data_bytes) {
  std::unordered_set<std::string_view> names{kMetadataKey};
  std::string text = "{", separator;
  if (!metadata.empty()) {
    text += concat('"', kMetadataKey, "\":", nlohmann::json(metadata).dump());
    separator = ",";
  }
  data_bytes = 0;
  for (const TensorDeclaration& tensor : tensors) {
    require(names.insert(tensor.name).second, "safetensors: ", in_quotes(tensor.name), " declared twice");
    nlohmann::json dims = nlohmann::json::array();
    for (int d = 0; d < tensor.shape.rank(); ++d) dims.push_back(tensor.shape[d]);
    const std::size_t end = data_bytes + bytes_of(tensor.dtype, tensor.shape);
    text += concat(separator, nlohmann::json(tensor.name).dump(), ":{\"dtype\":\"", name_of(tensor.dtype),
                   "\",\"shape\":", dims.dump(), ",\"data_offsets\":[", data_bytes, ",", end, "]}");
    data_bytes = end;
    separator = ",";
  }
  text += "}";
  text.resize((text.size() + kLengthBytes - 1) / kLengthBytes * kLengthBytes, ' ');
  return text;
}

}  // namespace

std::optional<DType> dtype_named(std::string_view name) {
  const FormatDType* known = find_dtype(name);
  return known != nullptr ? known->dtype : std::nullopt;
}

std::string TensorInfo::shape_text() const { return "[" + joined(dims) + "]"; }

SafetensorsHeader parse_safetensors_header(std::span<const std::byte> beginning, std::size_t file_bytes,
                                           const std::string& source) {
  demand(file_bytes >= kLengthBytes, ExitCode::data, source, ": ", file_bytes, " bytes are too few for a safetensors file");
  std::uint64_t length = 0;
  std::memcpy(&length, beginning.data(), kLengthBytes);
  demand(length <= kMaxHeaderBytes, ExitCode::data, source, ": header length ", length, " is above the format's limit of ",
         kMaxHeaderBytes);
  demand(length > 0 && length <= file_bytes - kLengthBytes, ExitCode::data, source, ": header length ", length, " in a file of ",
         file_bytes, " bytes");
  const std::string_view text(reinterpret_cast<const char*>(beginning.data()) + kLengthBytes, static_cast<std::size_t>(length));
  demand(text[0] == '{', ExitCode::data, source, ": the header does not begin with { but with ", in_quotes(text.substr(0, 1)));

  SafetensorsHeader header;
  header.data_begin = kLengthBytes + static_cast<std::size_t>(length);
  const std::size_t data_bytes = file_bytes - header.data_begin;
  const nlohmann::json document = parse_json(text, source, kHeaderDepth);
  for (const auto& [name, entry] : document.items()) {
    if (name == kMetadataKey) {
      header.metadata = read_metadata(entry, source);
    } else {
      header.tensors.push_back(EntryReader(source, name, entry).read(name, data_bytes));
    }
  }

  std::stable_sort(header.tensors.begin(), header.tensors.end(), [](const TensorInfo& a, const TensorInfo& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  std::size_t position = 0;
  for (const TensorInfo& info : header.tensors) {
    demand(info.begin == position, ExitCode::data, source, ": tensor ", in_quotes(info.name), ": data offsets [", info.begin,
           ", ", info.end, info.begin < position ? ") overlap the tensor before, which ends at " : ") leave a hole after ",
           position);
    position = info.end;
  }
  demand(position == data_bytes, ExitCode::data, source, ": ", data_bytes - position,
         " bytes after the last tensor belong to none");
  return header;
}

SafetensorsHeader read_safetensors_header(const FileReader& file) {
  std::vector<std::byte> beginning(std::min(kLengthBytes, file.size()));
  file.read_at(0, beginning);
  std::uint64_t length = 0;
  if (!beginning.empty()) std::memcpy(&length, beginning.data(), beginning.size());
  // If the length exceeds the limit or the file, the parser refuses it and reads nothing else.
  if (length <= kMaxHeaderBytes && length <= file.size() - beginning.size()) {
    beginning.resize(kLengthBytes + static_cast<std::size_t>(length));
    file.read_at(kLengthBytes, std::span(beginning).subspan(kLengthBytes));
  }
  return parse_safetensors_header(beginning, file.size(), file.path().string());
}

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  MappedFile file(path);
  SafetensorsHeader header = parse_safetensors_header(file.bytes(), file.bytes().size(), path.string());
  return {std::move(file), std::move(header)};
}

SafetensorsFile::SafetensorsFile(MappedFile file, SafetensorsHeader header) : file_(std::move(file)), header_(std::move(header)) {
  index_.reserve(header_.tensors.size());
  for (std::size_t i = 0; i < header_.tensors.size(); ++i) {
    const TensorInfo& info = header_.tensors[i];
    index_.emplace(info.name, i);
    const std::span<const std::byte> data = bytes(info);
    if (!data.empty() && info.dtype && reinterpret_cast<std::uintptr_t>(data.data()) % size_of(*info.dtype) != 0) {
      auto copy = std::make_unique<std::byte[]>(data.size());
      std::copy(data.begin(), data.end(), copy.get());
      aligned_.emplace(info.begin, std::move(copy));
    }
  }
}

const TensorInfo* SafetensorsFile::find(std::string_view name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &header_.tensors[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& info) const {
  return file_.bytes().subspan(header_.data_begin + info.begin, info.end - info.begin);
}

Tensor SafetensorsFile::get(std::string_view name) const {
  const TensorInfo* info = find(name);
  demand(info != nullptr, ExitCode::data, path().string(), ": no tensor ", in_quotes(name));
  return get(*info);
}

Tensor SafetensorsFile::get(const TensorInfo& info) const {
  demand(info.dtype.has_value(), ExitCode::data, path().string(), ": tensor ", in_quotes(info.name), ": dtype ", info.dtype_name,
         " is not one that Octet reads");
  demand(info.dims.size() <= 4, ExitCode::data, path().string(), ": tensor ", in_quotes(info.name), ": shape ", info.shape_text(),
         " has more than 4 dims");
  Shape shape;
  for (const std::int64_t dim : info.dims) shape.push_back(dim);
  const auto copy = aligned_.find(info.begin);
  const std::byte* data = copy != aligned_.end() ? copy->second.get() : bytes(info).data();
  return {const_cast<std::byte*>(data), *info.dtype, shape};
}

std::string safetensors_header(const std::vector<TensorDeclaration>& tensors, const Metadata& metadata) {
  std::size_t data_bytes = 0;
  const std::string text = header_text(tensors, metadata, data_bytes);
  const std::uint64_t length = text.size();
  std::string result(kLengthBytes, '\0');
  std::memcpy(result.data(), &length, kLengthBytes);
  return result + text;
}

SafetensorsWriter::SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorDeclaration>& tensors,
                                     const Metadata& metadata)
    : path_(file_to_replace(path)), temporary_(path_.string() + concat(".tmp-", ::getpid())) {
  const std::string header = safetensors_header(tensors, metadata);
  begins_ = {header.size()};
  for (const TensorDeclaration& tensor : tensors) begins_.push_back(begins_.back() + bytes_of(tensor.dtype, tensor.shape));
  missing_ = begins_.back() - begins_.front();
  writer_ = std::make_unique<FileWriter>(temporary_);
  writer_->write(header);
}

SafetensorsWriter::~SafetensorsWriter() {
  if (!writer_) return;
  writer_.reset();
  std::error_code ignored;
  std::filesystem::remove(temporary_, ignored);
}

void SafetensorsWriter::write(std::span<const std::byte> bytes) {
  require(bytes.size() <= missing_, path_.string(), ": more data than the tensors declared");
  writer_->write(bytes);
  telemetry::own_page().mark();  // a slow disk is no stall
  missing_ -= bytes.size();
}

void SafetensorsWriter::write_at(std::size_t number, std::size_t offset, std::span<const std::byte> bytes) {
  require(number + 1 < begins_.size() && offset <= begins_[number + 1] - begins_[number] &&
              bytes.size() <= begins_[number + 1] - begins_[number] - offset && bytes.size() <= missing_,
          path_.string(), ": more data than the tensors declared");
  writer_->write_at(begins_[number] + offset, bytes);
  telemetry::own_page().mark();
  missing_ -= bytes.size();
}

void SafetensorsWriter::finish() {
  require(missing_ == 0, path_.string(), ": ", missing_, " bytes of the declared tensors missing");
  writer_->finish();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail_errno(ExitCode::internal, path_, "cannot rename");
  writer_.reset();
  sync_directory(path_.has_parent_path() ? path_.parent_path() : ".");
}

void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors, const Metadata& metadata) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const NamedTensor& a, const NamedTensor& b) {
    const FormatDType *dtype_a = find_dtype(name_of(a.tensor.dtype)), *dtype_b = find_dtype(name_of(b.tensor.dtype));
    return dtype_a != dtype_b ? dtype_a < dtype_b : a.name < b.name;
  });
  std::vector<TensorDeclaration> declarations;
  for (const NamedTensor& named : tensors) {
    require(named.tensor.contiguous(), "safetensors: ", named.name, " is not contiguous");
    declarations.push_back({named.name, named.tensor.dtype, named.tensor.shape});
  }
  SafetensorsWriter writer(path, declarations, metadata);
  for (const NamedTensor& named : tensors) {
    writer.write({static_cast<const std::byte*>(named.tensor.data), named.tensor.bytes()});
  }
  writer.finish();
}

}  // namespace octet::checkpoint
