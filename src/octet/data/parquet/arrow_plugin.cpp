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
#include <string_view>
#include <utility>
#include <vector>

#include "octet/data/parquet/arrow_leaves.h"
#include "octet/data/parquet/plugin.h"

namespace {

using octet::data::append_json_string;
using octet::data::kBatchRows;
using octet::data::Leaf;
using octet::data::Member;
using octet::data::row_of;

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

template <class Names>
bool is_one_of(std::string_view name, const Names& names) {
  return std::find(names.begin(), names.end(), name) != names.end();
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

// Rows that are made of several leaf columns, as JSON.
class JsonRows : public OctetParquetFile {
 public:
  using OctetParquetFile::OctetParquetFile;

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
      for (Member& member : members_) member.open(*group_);
    }
    --left_;
    row_ = read_row(json_) ? row_of(json_) : parquet::ByteArray();
    return &row_;
  }

 protected:
  // Overwrites `json` with the next row, or returns false for null.
  virtual bool read_row(std::string& json) = 0;

  std::vector<Member> members_;

 private:
  std::shared_ptr<parquet::RowGroupReader> group_;
  std::int64_t left_ = 0;  // rows of the group that have not been read
  std::string json_;
  parquet::ByteArray row_;
};

// A column of lists of structures, each list as JSON.
class ListColumn final : public JsonRows {
 public:
  ListColumn(const std::string& path, const std::string& name) : JsonRows(path) {
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
    bool has_text = false;
    for (int i = 0; i < message->field_count(); ++i) {
      const parquet::schema::Node& field = *message->field(i);
      const bool nested = field.is_group() || field.is_repeated();
      const bool text = !nested && is_text(static_cast<const parquet::schema::PrimitiveNode&>(field));
      if (text || is_one_of(field.name(), kMembersOfAnyType) || (nested && is_one_of(field.name(), kTexts)))
        members_.emplace_back(schema, field, 1);
      has_text = has_text || text;
    }
    if (!has_text) refuse("holds lists of structures without a string");
  }

 private:
  // Members of a message that are not ignored if they are no strings.
  static constexpr std::array<std::string_view, 11> kMembersOfAnyType = {
      "weight",    "train",    "loss",   "mask", "masked", "tool_calls", "function_call", "reasoning_content",
      "reasoning", "thinking", "thought"};
  // Texts of a message. One that is a list of parts is not taken for one that is missing.
  static constexpr std::array<std::string_view, 2> kTexts = {"content", "value"};

  bool read_row(std::string& json) override {
    bool is_null = false;
    messages_.clear();
    for (Member& member : members_) read_member(member, is_null);
    json = "[";
    for (const std::string& message : messages_) json += (json.size() > 1 ? "," : "") + message + (message == "null" ? "" : "}");
    json += "]";
    return !is_null;
  }

  // Adds one member to the messages of a row. All members must tell the same list.
  void read_member(Member& member, bool& is_null) {
    const bool first = &member == &members_.front();
    std::size_t count = 0;
    do {
      const Leaf::Item item = member.take();
      if (item.begins_row != (count == 0)) throw std::runtime_error("a list begins in the middle of another");
      if (item.definition <= list_) {
        is_null = item.definition < list_;
        break;
      }
      if (count == messages_.size() && !first) throw std::runtime_error("the fields of a list differ in number");
      if (first) messages_.emplace_back(item.definition < message_ ? "null" : "{");
      std::string& message = messages_[count++];
      if (item.has_value && message != "null") member.append(message);
    } while (member.goes_on());
    if (count != messages_.size()) throw std::runtime_error("the fields of a list differ in number");
  }

  std::int16_t list_ = 0, message_ = 0;  // definition levels of a list, which may be empty, and of a structure
  std::vector<std::string> messages_;
};

// The columns beside a conversation that belong to it, as the members of an object; null in rows that have none.
class SiblingColumns final : public JsonRows {
 public:
  SiblingColumns(const std::string& path, const std::string& column) : JsonRows(path) {
    const parquet::SchemaDescriptor& schema = *metadata_->schema();
    for (const std::string_view name : {"system", "system_prompt", "tools", "functions"}) {
      const std::string sibling(name);
      if (sibling != column && schema.group_node()->FieldIndex(sibling) >= 0)
        members_.emplace_back(schema, find_node(schema, sibling), 0);
    }
  }
  bool empty() const { return members_.empty(); }

 private:
  bool read_row(std::string& json) override {
    json.clear();
    for (Member& member : members_) {
      const Leaf::Item item = member.take();
      if (!item.begins_row) throw std::runtime_error("a list begins in the middle of another");
      if (item.has_value) member.append(json);
    }
    return !json.empty();
  }
};

// A column of conversations and its siblings. A row with siblings is an object that holds the conversation under the column's
// name.
class ConversationRows final : public OctetParquetFile {
 public:
  ConversationRows(const std::string& path, const std::string& column, std::unique_ptr<OctetParquetFile> conversations,
                   std::unique_ptr<OctetParquetFile> siblings)
      : OctetParquetFile(path), conversations_(std::move(conversations)), siblings_(std::move(siblings)) {
    append_json_string(parquet::ByteArray(column), name_);
  }

  void skip(std::int64_t rows) override {
    conversations_->skip(rows);
    siblings_->skip(rows);
  }

  const parquet::ByteArray* next() override {
    const parquet::ByteArray* conversation = conversations_->next();
    const parquet::ByteArray* siblings = siblings_->next();
    if (conversation == nullptr || conversation->ptr == nullptr || siblings == nullptr || siblings->ptr == nullptr)
      return conversation;
    json_ = "{" + name_ + ":" + text_of(*conversation) + "," + text_of(*siblings) + "}";
    row_ = row_of(json_);
    return &row_;
  }

 private:
  static std::string text_of(const parquet::ByteArray& value) { return {reinterpret_cast<const char*>(value.ptr), value.len}; }

  const std::unique_ptr<OctetParquetFile> conversations_, siblings_;
  std::string name_, json_;
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
    if (lists == 0) return new TextColumn(path, column);
    std::unique_ptr<OctetParquetFile> conversations;
    if (is_nested(path, column)) {
      conversations = std::make_unique<ListColumn>(path, column);
    } else {
      conversations = std::make_unique<TextColumn>(path, column);
    }
    auto siblings = std::make_unique<SiblingColumns>(path, column);
    if (siblings->empty()) return conversations.release();
    return new ConversationRows(path, column, std::move(conversations), std::move(siblings));
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
