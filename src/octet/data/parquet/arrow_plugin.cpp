// The Parquet plugin, built on Arrow's Parquet library. Memory holds the file's footer and a page and a dictionary of one column.
#include <arrow/memory_pool.h>
#include <parquet/column_reader.h>
#include <parquet/exception.h>
#include <parquet/file_reader.h>
#include <parquet/properties.h>
#include <parquet/schema.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <exception>
#include <memory>
#include <stdexcept>
#include <string>

#include "octet/data/parquet/plugin.h"

namespace {

constexpr std::int64_t kBatchRows = 256;
constexpr std::int64_t kReadBytes = 1 << 18;

parquet::ReaderProperties properties() {
  // The system pool returns freed memory at once; Arrow's other pools keep it.
  parquet::ReaderProperties properties(arrow::system_memory_pool());
  properties.enable_buffered_stream();  // otherwise Arrow reads the whole column of a row group at once
  properties.set_buffer_size(kReadBytes);
  properties.set_page_checksum_verification(true);  // for pages that have a checksum
  return properties;
}

// The column names for a message: "id, url, ...".
std::string names_of(const parquet::schema::GroupNode& root) {
  constexpr int kMost = 12;
  std::string names;
  for (int i = 0; i < std::min(root.field_count(), kMost); ++i) names += (i > 0 ? ", " : "") + root.field(i)->name();
  return root.field_count() > kMost ? names + ", ..." : names;
}

// The number of the leaf column with this name; the last one if there are several. Throws if it does not hold strings.
int find_column(const parquet::SchemaDescriptor& schema, const std::string& name) {
  const parquet::schema::GroupNode& root = *schema.group_node();
  const parquet::schema::Node* node = nullptr;
  for (int i = 0; i < root.field_count(); ++i) {
    if (root.field(i)->name() == name) node = root.field(i).get();
  }
  const std::string column = "column \"" + name + "\"";
  if (node == nullptr) throw std::runtime_error("no " + column + " (there are: " + names_of(root) + ")");
  const auto not_text = [&](const std::string& kind) { throw std::runtime_error(column + " holds " + kind + ", not strings"); };
  if (node->is_group() || node->is_repeated()) not_text("lists or structures");
  const auto* leaf = static_cast<const parquet::schema::PrimitiveNode*>(node);
  if (leaf->physical_type() != parquet::Type::BYTE_ARRAY) not_text(parquet::TypeToString(leaf->physical_type()));
  const parquet::LogicalType& logical = *leaf->logical_type();
  if (!logical.is_none() && !logical.is_string() && !logical.is_enum() && !logical.is_JSON()) not_text(logical.ToString());
  return schema.ColumnIndex(*node);
}

}  // namespace

struct OctetParquetFile {
  OctetParquetFile(const std::string& path, const std::string& name)
      : file_(parquet::ParquetFileReader::OpenFile(path, false, properties())),
        metadata_(file_->metadata()),
        column_(find_column(*metadata_->schema(), name)),
        nullable_(metadata_->schema()->Column(column_)->max_definition_level() > 0) {
    for (int group = 0; group < metadata_->num_row_groups(); ++group) {
      const std::int64_t rows = rows_of(group);
      if (rows < 0 || rows > metadata_->num_rows() - rows_) throw std::runtime_error("its row groups contradict its footer");
      rows_ += rows;
    }
    if (rows_ != metadata_->num_rows()) throw std::runtime_error("its row groups contradict its footer");
  }

  std::int64_t rows() const { return rows_; }

  void skip(std::int64_t rows) {
    while (rows > 0) {
      if (next_ < levels_) {
        (void)row();
        --rows;
      } else if (left_ > 0) {
        const std::int64_t passed = std::min(rows, left_);
        if (reader_->Skip(passed) != passed) throw std::runtime_error("a row group ends before its last row");
        left_ -= passed;
        rows -= passed;
      } else if (next_group_ < metadata_->num_row_groups() && rows_of(next_group_) <= rows) {
        rows -= rows_of(next_group_++);  // skips the whole group without opening it
      } else if (!open_group()) {
        return;
      }
    }
  }

  // The value of the next row, or nullptr at the end. A null row gives a value whose `ptr` is nullptr.
  const parquet::ByteArray* next() {
    while (next_ == levels_) {
      if (left_ > 0) {
        read_batch();
      } else if (!open_group()) {
        return nullptr;
      }
    }
    return row();
  }

 private:
  std::int64_t rows_of(int group) const { return metadata_->RowGroup(group)->num_rows(); }

  bool open_group() {
    if (next_group_ == metadata_->num_row_groups()) return false;
    const std::int64_t rows = rows_of(next_group_);
    if (metadata_->RowGroup(next_group_)->ColumnChunk(column_)->num_values() != rows)
      throw std::runtime_error("a row group's rows and the column's values differ in number");
    group_ = file_->RowGroup(next_group_++);
    column_reader_ = group_->Column(column_);
    reader_ = dynamic_cast<parquet::ByteArrayReader*>(column_reader_.get());
    if (reader_ == nullptr) throw std::runtime_error("the column is of another type than its schema says");
    left_ = rows;
    return true;
  }

  void read_batch() {
    next_ = next_value_ = 0;
    levels_ = reader_->ReadBatch(std::min(left_, kBatchRows), nullable_ ? definitions_.data() : nullptr, nullptr, values_.data(),
                                 &value_count_);
    if (levels_ <= 0) throw std::runtime_error("a row group ends before its last row");
    left_ -= levels_;
  }

  const parquet::ByteArray* row() {
    static const parquet::ByteArray null;
    if (nullable_ && definitions_[static_cast<std::size_t>(next_)] == 0) {
      ++next_;
      return &null;
    }
    if (next_value_ == value_count_) throw std::runtime_error("a page has fewer values than it says");
    ++next_;
    parquet::ByteArray& value = values_[static_cast<std::size_t>(next_value_++)];
    if (value.ptr == nullptr) value.ptr = reinterpret_cast<const std::uint8_t*>("");
    return &value;
  }

  const std::unique_ptr<parquet::ParquetFileReader> file_;
  const std::shared_ptr<parquet::FileMetaData> metadata_;
  const int column_;
  const bool nullable_;
  std::int64_t rows_ = 0;

  int next_group_ = 0;
  std::shared_ptr<parquet::RowGroupReader> group_;
  std::shared_ptr<parquet::ColumnReader> column_reader_;
  parquet::ByteArrayReader* reader_ = nullptr;  // column_reader_ as its derived type
  std::int64_t left_ = 0;                       // rows of the group that have not been read into a batch
  // The current batch: `levels_` rows, of which `value_count_` are not null.
  std::array<parquet::ByteArray, kBatchRows> values_{};
  std::array<std::int16_t, kBatchRows> definitions_{};
  std::int64_t levels_ = 0, next_ = 0;
  std::int64_t value_count_ = 0, next_value_ = 0;
};

namespace {

// Converts an exception to an error message: exceptions must not cross the C interface.
template <class Result, class Act>
Result guarded(Result failed, char* error, std::size_t error_size, const Act& act) {
  try {
    return act();
  } catch (const parquet::ParquetStatusException& exception) {
    std::snprintf(error, error_size, "%s", exception.status().message().c_str());  // what() would begin with a code, "Invalid: "
  } catch (const std::exception& exception) {
    std::snprintf(error, error_size, "%s", exception.what());
  } catch (...) {
    std::snprintf(error, error_size, "unknown error");
  }
  return failed;
}

OctetParquetFile* open(const char* path, const char* column, char* error, std::size_t error_size) {
  return guarded<OctetParquetFile*>(nullptr, error, error_size, [&] { return new OctetParquetFile(path, column); });
}

std::int64_t rows(const OctetParquetFile* file) { return file->rows(); }

std::int32_t skip(OctetParquetFile* file, std::int64_t rows, char* error, std::size_t error_size) {
  return guarded<std::int32_t>(-1, error, error_size, [&] {
    file->skip(rows);
    return 0;
  });
}

std::int32_t next(OctetParquetFile* file, const char** bytes, std::size_t* size, char* error, std::size_t error_size) {
  return guarded<std::int32_t>(-1, error, error_size, [&] {
    const parquet::ByteArray* value = file->next();
    if (value == nullptr) return 0;
    *bytes = reinterpret_cast<const char*>(value->ptr);
    *size = value->len;
    return 1;
  });
}

void close(OctetParquetFile* file) { delete file; }

constexpr OctetParquetPlugin kPlugin = {kOctetParquetVersion, open, rows, skip, next, close};

}  // namespace

extern "C" __attribute__((visibility("default"))) const OctetParquetPlugin* octet_parquet_plugin() { return &kPlugin; }
