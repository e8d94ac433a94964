// The safetensors format: an 8-byte little-endian header length, a JSON header {name: {dtype, shape, data_offsets}, ...} padded
// with spaces, then the data of the tensors, row-major and without holes.
// Source: https://huggingface.co/docs/safetensors. Files come from strangers: everything the header says is checked before it is
// used, and every refusal is one line, Error{data}, with the file, the tensor and the value.
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

// The dtype of the name that files carry; empty when Octet has no use for it. "U8" is u8, for E8M0 as well.
std::optional<DType> dtype_named(std::string_view name);

// One tensor as its file describes it.
struct TensorInfo {
  std::string name;
  std::string dtype_name;          // as written, "BF16"
  std::optional<DType> dtype;      // empty for dtypes of the format that Octet has no use for (BOOL, I8, C64, F8_E8M0, ...)
  std::vector<std::int64_t> dims;  // any rank
  std::size_t begin = 0, end = 0;  // bytes of the data section

  // "[2, 3]"
  std::string shape_text() const;
};

struct SafetensorsHeader {
  std::vector<TensorInfo> tensors;  // in the order of their data
  Metadata metadata;                // "__metadata__"
  std::size_t data_begin = 0;       // of the file; the data section ends with the file
};

// Checks and reads the header of a file of `file_bytes` bytes, of which `beginning` holds the header at least, or all that there
// is; `source` names it in errors.
SafetensorsHeader parse_safetensors_header(std::span<const std::byte> beginning, std::size_t file_bytes,
                                           const std::string& source);
// Reads no more of the file than that.
SafetensorsHeader read_safetensors_header(const FileReader& file);

// A file mapped into memory. Tensors and spans given out are valid as long as the object (moves included), and const: the
// memory behind them is read-only.
class SafetensorsFile {
 public:
  static SafetensorsFile open(const std::filesystem::path& path);

  const std::filesystem::path& path() const { return file_.path(); }
  const std::vector<TensorInfo>& tensors() const { return header_.tensors; }
  const Metadata& metadata() const { return header_.metadata; }

  // Null when there is no tensor of this name.
  const TensorInfo* find(std::string_view name) const;
  // The raw data, at any alignment.
  std::span<const std::byte> bytes(const TensorInfo& info) const;
  // A view in host memory, aligned for its dtype (data that the file holds unaligned is copied once, by open). Throws Error{data}
  // for an unknown name, a dtype that Octet has no use for and more than 4 dims.
  Tensor get(std::string_view name) const;
  Tensor get(const TensorInfo& info) const;

 private:
  SafetensorsFile(MappedFile file, SafetensorsHeader header);

  MappedFile file_;
  SafetensorsHeader header_;
  std::unordered_map<std::string_view, std::size_t> index_;  // into header_.tensors
  std::unordered_map<std::size_t, std::unique_ptr<std::byte[]>> aligned_;
};

struct TensorDeclaration {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
};

// Writes a file of tensors declared beforehand, whose data stand in the declared order. They come in pieces of any size: one after
// the other (write), or each where it belongs (write_at), every byte once. The file appears under its name, complete and synced to
// the disk, in finish(); a writer that dies before leaves nothing. A full disk and the like throw Error{internal} "PATH: reason".
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, const std::vector<TensorDeclaration>& tensors,
                    const Metadata& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  // Bytes [offset, offset + size) of the data of the tensor declared as `number`. Not together with write.
  void write_at(std::size_t number, std::size_t offset, std::span<const std::byte> bytes);
  void finish();

 private:
  std::filesystem::path path_, temporary_;
  std::unique_ptr<FileWriter> writer_;  // null when finished
  std::vector<std::size_t> begins_;     // where the data of each tensor begin in the file, and the end
  std::size_t missing_ = 0;             // bytes of data
};

struct NamedTensor {
  std::string name;
  Tensor tensor;  // host memory, contiguous
};

// A file of tensors in host memory, to the byte as Python's writer makes it: wide dtypes first (so that all data are aligned),
// then by name.
void write_safetensors(const std::filesystem::path& path, std::vector<NamedTensor> tensors, const Metadata& metadata = {});

}  // namespace octet::checkpoint
