// Reads and writes the safetensors format: an 8-byte little-endian header length, a JSON header {name: {dtype, shape, data_offsets},
// ...} padded with spaces, then the data of the tensors, row-major and without gaps.
// Source: https://huggingface.co/docs/safetensors.
//
// Files are not trusted: every field of the header is checked before use. An invalid file throws Error{data}, one line that names the
// file, the tensor and the value.
#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "octet/base/file.h"
#include "octet/tensor/dtype.h"
#include "octet/tensor/shape.h"
#include "octet/tensor/tensor.h"

namespace octet::checkpoint {

using Metadata = std::map<std::string, std::string>;

// The dtype with this name in safetensors files, or nothing if Octet does not support it. "U8" is u8, which Octet also uses to store
// E8M0 scales.
std::optional<DType> dtype_named(std::string_view name);

// One tensor as its file describes it.
struct TensorInfo {
  std::string name;
  std::string dtype_name;          // the name in the file, such as "BF16"
  std::optional<DType> dtype;      // nothing for dtypes that Octet does not support (BOOL, I8, C64, F8_E8M0 and others)
  std::vector<std::int64_t> dims;  // any number of dims
  std::size_t begin = 0, end = 0;  // byte range in the data section

  // "[2, 3]"
  std::string shape_text() const;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their data
  Metadata metadata;                // "__metadata__"
  std::size_t data_begin = 0;       // byte offset of the data section, which extends to the end of the file
};

// Checks and parses the header of a file of `file_bytes` bytes. `beginning` holds at least the whole header, or the whole file if it is
// shorter. `source` names the file in errors.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> beginning, std::size_t file_bytes,
                                           const std::string& source);
// Reads only the header of the file, and checks it.
SafetensorsHeader read_safetensors_header(const FileReader& file);

// A memory-mapped file. The tensors and spans that it returns are valid as long as the object, or the object it was moved to, exists.
// Their memory is read-only.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }

  // The tensor `name`, or nullptr if there is none.
  const TensorInfo* find(std::string_view name) const;
  // The raw data, which may be unaligned.
  std::span<const std::byte> bytes(const TensorInfo& info) const;
  // A view in host memory, aligned for its dtype; open() copies data that are unaligned in the file. Throws Error{data} for an unknown
  // name, an unsupported dtype or more than 4 dims.
  Tensor get(std::string_view name) const;
  Tensor get(const TensorInfo& info) const;

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header);

  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, std::size_t> index_;                 // name: index in header_.tensors
  std::unordered_map<std::size_t, std::unique_ptr<std::byte[]>> aligned_;  // TensorInfo::begin: aligned copy
};

struct TensorDeclaration {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// Returns the beginning of a file with these tensors, up to its data.
std::string safetensors_header(const std::vector<TensorDeclaration>& tensors, const Metadata& metadata = {});

// Writes a file of tensors that are declared in advance. The data are stored in the declared order. The caller passes every byte once,
// in pieces of any size: in order with write(), or at any place with write_at(). finish() syncs the file to the disk and gives it its
// name, which is file_to_replace(path). Without finish(), the destructor deletes the temporary file. Throws Error{internal} "PATH:
// reason" if writing fails, for example because the disk is full.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorDeclaration>& tensors,
                    const Metadata& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  // Writes bytes [offset, offset + bytes.size()) of the data of declared tensor `number`. Do not use it together with write().
  void write_at(std::size_t number, std::size_t offset, std::span<const std::byte> bytes);
  void finish();

 private:
  std::filesystem::path path_, temporary_;
  std::unique_ptr<FileWriter> writer_;  // nullptr after finish()
  std::vector<std::size_t> begins_;     // byte offset in the file of each tensor's data, then the end of the data
  std::size_t missing_ = 0;             // bytes of data not yet written
};

struct NamedTensor {
  std::string name;
  Tensor tensor;  // host memory, contiguous
};

// Writes tensors in host memory to a file, byte for byte as the Python package safetensors does: wide dtypes first, so that all data are
// aligned, then in the order of names.
void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors, const Metadata& metadata = {});

}  // namespace octet::checkpoint
