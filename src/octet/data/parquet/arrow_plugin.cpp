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
#include <utility>
#include <vector>

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

// Whether a column's values are text.
bool is_text(const parquet::schema::PrimitiveNode& leaf) {
  const parquet::LogicalType& logical = *leaf.logical_type();
  return leaf.physical_type() == parquet::Type::BYTE_ARRAY &&
         (logical.is_none() || logical.is_string() || logical.is_enum() || logical.is_JSON());
}

// The top-level column with this name; the last one if there are several.
const parquet::schema::Node& find_node(const parquet::SchemaDescriptor& schema, const std::string& name) {
  const parquet::schema::GroupNode& root = *schema.group_node();
  const parquet::schema::Node* node = nullptr;
  for (int i = 0; i < root.field_count(); ++i) {
    if (root.field(i)->name() == name) node = root.field(i).get();
  }
  if (node == nullptr) throw std::runtime_error("no column \"" + name + "\" (there are: " + names_of(root) + ")");
  return *node;
}

// The number of the leaf column. Throws if it does not hold strings.
int find_column(const parquet::SchemaDescriptor& schema, const std::string& name) {
  const parquet::schema::Node& node = find_node(schema, name);
  const auto not_text = [&](const std::string& kind) {
    throw std::runtime_error("column \"" + name + "\" holds " + kind + ", not strings");
  };
  if (node.is_group() || node.is_repeated()) not_text("lists or structures");
  const auto& leaf = static_cast<const parquet::schema::PrimitiveNode&>(node);
  if (leaf.physical_type() != parquet::Type::BYTE_ARRAY) not_text(parquet::TypeToString(leaf.physical_type()));
  if (!is_text(leaf)) not_text(leaf.logical_type()->ToString());
  return schema.ColumnIndex(node);
}

}  // namespace

struct OctetParquetFile {
  explicit OctetParquetFile(const std::string& path)
      : file_(parquet::ParquetFileReader::OpenFile(path, false, properties())), metadata_(file_->metadata()) {
    for (int group = 0; group < metadata_->num_row_groups(); ++group) {
      const std::int64_t rows = rows_of(group);
      if (rows < 0 || rows > metadata_->num_rows() - rows_) throw std::runtime_error("its row groups contradict its footer");
      rows_ += rows;
    }
    if (rows_ != metadata_->num_rows()) throw std::runtime_error("its row groups contradict its footer");
  }
  virtual ~OctetParquetFile() = default;

  std::int64_t rows() const { return rows_; }
  virtual void skip(std::int64_t rows) = 0;
  // The value of the next row, or nullptr at the end. A null row gives a value whose `ptr` is nullptr.
  virtual const parquet::ByteArray* next() = 0;

 protected:
  std::int64_t rows_of(int group) const { return metadata_->RowGroup(group)->num_rows(); }

  const std::unique_ptr<parquet::ParquetFileReader> file_;
  const std::shared_ptr<parquet::FileMetaData> metadata_;
  std::int64_t rows_ = 0;
  int next_group_ = 0;
};

namespace {

class TextColumn final : public OctetParquetFile {
 public:
  TextColumn(const std::string& path, const std::string& name)
      : OctetParquetFile(path),
        column_(find_column(*metadata_->schema(), name)),
        nullable_(metadata_->schema()->Column(column_)->max_definition_level() > 0) {}

  void skip(std::int64_t rows) override {
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

  const parquet::ByteArray* next() override {
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

  const int column_;
  const bool nullable_;
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

void append_json_string(const parquet::ByteArray& value, std::string& json) {
  json += '"';
  for (std::uint32_t i = 0; i < value.len; ++i) {
    const char c = static_cast<char>(value.ptr[i]);
    std::array<char, 8> code{};
    if (c == '"' || c == '\\') json += '\\';
    if (static_cast<unsigned char>(c) >= 0x20) {
      json += c;
    } else {
      std::snprintf(code.data(), code.size(), "\\u%04x", static_cast<unsigned>(c));
      json += code.data();
    }
  }
  json += '"';
}

// One string field of the structures. Its levels say, as Dremel (Melnik et al., 2010) has it, where a row begins (repetition 0)
// and what is missing: the definition level counts how many of the optional and repeated nodes on the way to the string are
// there.
class StringField {
 public:
  struct Level {
    std::int16_t definition = 0;
    bool begins_row = false;
    parquet::ByteArray value;  // if definition is present(); valid until the next level is taken
  };
  StringField(std::string name, int column, std::int16_t present) : name_(std::move(name)), column_(column), present_(present) {}

  const std::string& name() const { return name_; }
  std::int16_t present() const { return present_; }

  void open(parquet::RowGroupReader& group) {
    owner_ = group.Column(column_);
    reader_ = dynamic_cast<parquet::ByteArrayReader*>(owner_.get());
    if (reader_ == nullptr) throw std::runtime_error("the column is of another type than its schema says");
    levels_ = next_ = 0;
  }
  // Whether another structure of the same list follows.
  bool goes_on() { return fill() && repetitions_[static_cast<std::size_t>(next_)] > 0; }
  Level take() {
    if (!fill()) throw std::runtime_error("a row group ends before its last row");
    const auto at = static_cast<std::size_t>(next_++);
    Level level{.definition = definitions_[at], .begins_row = repetitions_[at] == 0, .value = {}};
    if (level.definition < present_) return level;
    if (next_value_ == value_count_) throw std::runtime_error("a page has fewer values than it says");
    level.value = values_[static_cast<std::size_t>(next_value_++)];
    return level;
  }

 private:
  bool fill() {
    while (next_ == levels_) {
      if (!reader_->HasNext()) return false;
      next_ = next_value_ = 0;
      levels_ = reader_->ReadBatch(kBatchRows, definitions_.data(), repetitions_.data(), values_.data(), &value_count_);
    }
    return true;
  }

  std::string name_;
  int column_;
  std::int16_t present_;
  std::shared_ptr<parquet::ColumnReader> owner_;
  parquet::ByteArrayReader* reader_ = nullptr;  // owner_ as its derived type
  std::array<parquet::ByteArray, kBatchRows> values_{};
  std::array<std::int16_t, kBatchRows> definitions_{}, repetitions_{};
  std::int64_t levels_ = 0, next_ = 0, value_count_ = 0, next_value_ = 0;
};

// A column of lists of structures, each list as JSON.
class ListColumn final : public OctetParquetFile {
 public:
  ListColumn(const std::string& path, const std::string& name) : OctetParquetFile(path) {
    using parquet::schema::GroupNode;
    const parquet::SchemaDescriptor& schema = *metadata_->schema();
    const auto refuse = [&](const std::string& what) { throw std::runtime_error("column \"" + name + "\" " + what); };
    const parquet::schema::Node& list = find_node(schema, name);
    const auto* repeated = static_cast<const GroupNode*>(&list);
    if (!list.is_repeated()) {
      if (repeated->field_count() != 1 || !repeated->field(0)->is_repeated()) refuse("holds structures, not lists of messages");
      list_ = list.is_optional() ? 1 : 0;
      if (!repeated->field(0)->is_group()) refuse("holds lists of values, not of messages");
      repeated = static_cast<const GroupNode*>(repeated->field(0).get());
    }
    // Old writers make the structure itself the repeated node.
    const bool wrapped = repeated->field_count() == 1;
    if (wrapped && !repeated->field(0)->is_group()) refuse("holds lists of values, not of messages");
    const auto* message = wrapped ? static_cast<const GroupNode*>(repeated->field(0).get()) : repeated;
    message_ = static_cast<std::int16_t>(list_ + 1 + (wrapped && message->is_optional() ? 1 : 0));
    for (int i = 0; i < message->field_count(); ++i) {
      const parquet::schema::Node& field = *message->field(i);
      if (field.name() == "tool_calls" || field.name() == "function_call")
        refuse("has messages with \"" + field.name() + "\", which would be lost: write it into \"content\" as text");
      if (field.is_group() || field.is_repeated() || !is_text(static_cast<const parquet::schema::PrimitiveNode&>(field)))
        continue;
      fields_.emplace_back(field.name(), schema.ColumnIndex(field),
                           static_cast<std::int16_t>(message_ + (field.is_optional() ? 1 : 0)));
    }
    if (fields_.empty()) refuse("holds lists of structures without a string");
  }

  void skip(std::int64_t rows) override {
    while (rows > 0) {
      if (left_ == 0 && next_group_ < metadata_->num_row_groups() && rows_of(next_group_) <= rows) {
        rows -= rows_of(next_group_++);
      } else if (next() == nullptr) {
        return;
      } else {
        --rows;
      }
    }
  }

  const parquet::ByteArray* next() override {
    while (left_ == 0) {
      if (next_group_ == metadata_->num_row_groups()) return nullptr;
      left_ = rows_of(next_group_);
      group_ = file_->RowGroup(next_group_++);
      for (StringField& field : fields_) field.open(*group_);
    }
    --left_;
    bool is_null = false;
    messages_.clear();
    for (StringField& field : fields_) read_row(field, is_null);
    json_ = "[";
    for (const std::string& message : messages_)
      json_ += (json_.size() > 1 ? "," : "") + message + (message == "null" ? "" : "}");
    json_ += "]";
    row_ = is_null ? parquet::ByteArray()
                   : parquet::ByteArray(static_cast<std::uint32_t>(json_.size()),
                                        reinterpret_cast<const std::uint8_t*>(json_.data()));
    return &row_;
  }

 private:
  // Adds one field to the messages of a row: "{" and its string. All fields must tell the same list.
  void read_row(StringField& field, bool& is_null) {
    const bool first = &field == &fields_.front();
    std::size_t count = 0;
    do {
      const StringField::Level level = field.take();
      if (level.begins_row != (count == 0)) throw std::runtime_error("a list begins in the middle of another");
      if (level.definition <= list_) {
        is_null = level.definition < list_;
        break;
      }
      if (count == messages_.size() && !first) throw std::runtime_error("the fields of a list differ in number");
      if (first) messages_.emplace_back(level.definition < message_ ? "null" : "{");
      std::string& message = messages_[count++];
      if (level.definition < field.present() || message == "null") continue;
      if (message.size() > 1) message += ',';
      append_json_string(parquet::ByteArray(field.name()), message);
      message += ':';
      append_json_string(level.value, message);
    } while (field.goes_on());
    if (count != messages_.size()) throw std::runtime_error("the fields of a list differ in number");
  }

  std::int16_t list_ = 0, message_ = 0;  // definition levels of a list, which may be empty, and of a structure
  std::vector<StringField> fields_;
  std::shared_ptr<parquet::RowGroupReader> group_;
  std::int64_t left_ = 0;  // rows of the group that have not been read
  std::vector<std::string> messages_;
  std::string json_;
  parquet::ByteArray row_;
};

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

// Whether the column is one of lists or structures.
bool is_nested(const char* path, const char* column) {
  const auto file = parquet::ParquetFileReader::OpenFile(path, false, properties());
  const parquet::schema::Node& node = find_node(*file->metadata()->schema(), column);
  return node.is_group();
}

OctetParquetFile* open(const char* path, const char* column, std::int32_t lists, char* error, std::size_t error_size) {
  return guarded<OctetParquetFile*>(nullptr, error, error_size, [&]() -> OctetParquetFile* {
    if (lists != 0 && is_nested(path, column)) return new ListColumn(path, column);
    return new TextColumn(path, column);
  });
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
