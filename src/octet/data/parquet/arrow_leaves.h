// Leaf columns of a Parquet file as members of JSON objects. Only the plugin includes this.
#pragma once

#include <parquet/column_reader.h>
#include <parquet/file_reader.h>
#include <parquet/schema.h>

#include <array>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <limits>
#include <memory>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace octet::data {

constexpr std::int64_t kBatchRows = 256;
// A value that is not allowed in a message becomes a list with its kind, which the program's refusal then shows.
constexpr const char* kNested = R"(["a list or structure"])";

inline void append_json_string(const parquet::ByteArray& value, std::string& json) {
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

// A row of JSON as a value. Parquet's values have at most 4 GiB.
inline parquet::ByteArray row_of(const std::string& json) {
  if (json.size() > std::numeric_limits<std::uint32_t>::max()) throw std::runtime_error("a row of more than 4 GiB");
  return {static_cast<std::uint32_t>(json.size()), reinterpret_cast<const std::uint8_t*>(json.data())};
}

// Numbers that JSON does not have become strings.
template <class T>
void append_json_number(T value, std::string& json) {
  std::array<char, 32> text{};
  std::snprintf(text.data(), text.size(), std::isfinite(value) ? "%.17g" : "\"%g\"", static_cast<double>(value));
  json += text.data();
}

// A batch of values of a leaf column, with their levels.
class LeafBatch {
 public:
  virtual ~LeafBatch() = default;
  // Reads the next batch and returns its number of levels, which is 0 at the end.
  virtual std::int64_t read() = 0;
  // Appends value `number` of the batch as JSON.
  virtual void append(std::int64_t number, std::string& json) const = 0;

  std::array<std::int16_t, kBatchRows> definitions{}, repetitions{};
  std::int64_t values = 0;
};

template <class Type>
class TypedBatch final : public LeafBatch {
 public:
  explicit TypedBatch(std::shared_ptr<parquet::ColumnReader> owner)
      : owner_(std::move(owner)), reader_(dynamic_cast<parquet::TypedColumnReader<Type>*>(owner_.get())) {
    if (reader_ == nullptr) throw std::runtime_error("the column is of another type than its schema says");
  }
  std::int64_t read() override {
    if (!reader_->HasNext()) return 0;
    return reader_->ReadBatch(kBatchRows, definitions.data(), repetitions.data(), values_.data(), &values);
  }
  void append(std::int64_t number, std::string& json) const override {
    const auto& value = values_[static_cast<std::size_t>(number)];
    if (reader_->descr()->logical_type()->is_decimal()) {  // the value without its point
      json += R"(["a decimal number"])";
    } else if constexpr (std::is_same_v<Type, parquet::ByteArrayType>) {
      append_json_string(value, json);
    } else if constexpr (std::is_same_v<Type, parquet::BooleanType>) {
      json += value ? "true" : "false";
    } else if constexpr (std::is_arithmetic_v<typename Type::c_type>) {
      append_json_number(value, json);
    } else {
      json += "[\"" + parquet::TypeToString(reader_->descr()->physical_type()) + "\"]";
    }
  }

 private:
  std::shared_ptr<parquet::ColumnReader> owner_;
  parquet::TypedColumnReader<Type>* reader_ = nullptr;  // owner_ as its derived type
  std::array<typename Type::c_type, kBatchRows> values_{};
};

inline std::unique_ptr<LeafBatch> batch_of(std::shared_ptr<parquet::ColumnReader> column) {
  switch (column->type()) {
    case parquet::Type::BOOLEAN:
      return std::make_unique<TypedBatch<parquet::BooleanType>>(std::move(column));
    case parquet::Type::INT32:
      return std::make_unique<TypedBatch<parquet::Int32Type>>(std::move(column));
    case parquet::Type::INT64:
      return std::make_unique<TypedBatch<parquet::Int64Type>>(std::move(column));
    case parquet::Type::INT96:
      return std::make_unique<TypedBatch<parquet::Int96Type>>(std::move(column));
    case parquet::Type::FLOAT:
      return std::make_unique<TypedBatch<parquet::FloatType>>(std::move(column));
    case parquet::Type::DOUBLE:
      return std::make_unique<TypedBatch<parquet::DoubleType>>(std::move(column));
    case parquet::Type::BYTE_ARRAY:
      return std::make_unique<TypedBatch<parquet::ByteArrayType>>(std::move(column));
    case parquet::Type::FIXED_LEN_BYTE_ARRAY:
      return std::make_unique<TypedBatch<parquet::FLBAType>>(std::move(column));
    default:
      throw std::runtime_error("a column of an unknown type");
  }
}

// A leaf column whose values belong to items: rows, or structures of a list. The levels follow Dremel (Melnik et al., 2010).
// They show where an item begins (a repetition of at most `depth`) and which parts are missing: the definition level counts how
// many of the optional and repeated nodes on the path to the value are present.
class Leaf {
 public:
  struct Item {
    std::int16_t definition = 0;  // of its first value
    bool begins_row = false, has_value = false;
  };
  Leaf(const parquet::SchemaDescriptor& schema, const parquet::schema::Node& node, std::int16_t depth)
      : column_(schema.ColumnIndex(node)), depth_(depth), present_(schema.Column(column_)->max_definition_level()) {}

  void open(parquet::RowGroupReader& group) {
    batch_ = batch_of(group.Column(column_));
    levels_ = next_ = 0;
  }
  // Whether another structure of the same list follows.
  bool goes_on() { return fill() && batch_->repetitions[static_cast<std::size_t>(next_)] > 0; }
  // Takes the next item, and appends its first value to `json`.
  Item take(std::string& json) {
    if (!fill()) throw std::runtime_error("a row group ends before its last row");
    const auto at = static_cast<std::size_t>(next_);
    Item item{.definition = batch_->definitions[at], .begins_row = batch_->repetitions[at] == 0};
    do {
      const bool is_value = batch_->definitions[static_cast<std::size_t>(next_++)] == present_;
      if (is_value && next_value_ == batch_->values) throw std::runtime_error("a page has fewer values than it says");
      if (is_value && !item.has_value) batch_->append(next_value_, json);
      next_value_ += is_value;
      item.has_value = item.has_value || is_value;
    } while (fill() && batch_->repetitions[static_cast<std::size_t>(next_)] > depth_);
    return item;
  }

 private:
  bool fill() {
    while (next_ == levels_) {
      next_ = next_value_ = 0;
      levels_ = batch_->read();
      if (levels_ <= 0) return false;
    }
    return true;
  }

  int column_;
  std::int16_t depth_, present_;
  std::unique_ptr<LeafBatch> batch_;
  std::int64_t levels_ = 0, next_ = 0, next_value_ = 0;
};

// A member of an object. A structure or list that has any value in it becomes kNested.
class Member {
 public:
  Member(const parquet::SchemaDescriptor& schema, const parquet::schema::Node& node, std::int16_t depth)
      : name_(node.name()), is_leaf_(node.is_primitive() && !node.is_repeated()) {
    add(schema, node, depth);
    if (leaves_.empty()) throw std::runtime_error("\"" + name_ + "\" is a structure without fields");
  }

  void open(parquet::RowGroupReader& group) {
    for (Leaf& leaf : leaves_) leaf.open(group);
  }
  bool goes_on() {
    const bool first = leaves_.front().goes_on();
    for (std::size_t i = 1; i < leaves_.size(); ++i) {
      if (leaves_[i].goes_on() != first) throw std::runtime_error("the fields of a list differ in number");
    }
    return first;
  }
  Leaf::Item take() {
    value_.clear();
    Leaf::Item item = leaves_.front().take(value_);
    for (std::size_t i = 1; i < leaves_.size(); ++i) {
      const Leaf::Item other = leaves_[i].take(value_);
      if (other.begins_row != item.begins_row) throw std::runtime_error("a list begins in the middle of another");
      item.has_value = item.has_value || other.has_value;
    }
    return item;
  }
  // Appends the item that was taken last to the members of an object.
  void append(std::string& members) const {
    if (!members.empty() && members.back() != '{') members += ',';
    append_json_string(parquet::ByteArray(name_), members);
    members += ':';
    members += is_leaf_ ? value_ : kNested;
  }

 private:
  void add(const parquet::SchemaDescriptor& schema, const parquet::schema::Node& node, std::int16_t depth) {
    if (node.is_primitive()) {
      leaves_.emplace_back(schema, node, depth);
      return;
    }
    const auto& group = static_cast<const parquet::schema::GroupNode&>(node);
    for (int i = 0; i < group.field_count(); ++i) add(schema, *group.field(i), depth);
  }

  std::string name_;
  bool is_leaf_;
  std::vector<Leaf> leaves_;
  std::string value_;
};

}  // namespace octet::data
