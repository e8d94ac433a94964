// Reads one text column of a Parquet file, row after row, through the plugin (plugin.h). Memory holds about a page of the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "octet/data/parquet/plugin.h"

namespace octet::data {

// Finds the plugin. Returns `named` (the value of OCTET_PARQUET) if it is not empty; otherwise looks in `program`, the program's
// folder, and in the folder of an installed plugin. Throws Error{config} with instructions if there is none.
std::filesystem::path find_parquet_plugin(const std::string& named, const std::filesystem::path& program);

// Returns the plugin and loads it at the first call. Throws Error{config} if there is none or it cannot be loaded.
const OctetParquetPlugin& parquet_plugin();

// All functions throw Error{data} "FILE: reason" or "FILE:ROW: reason". Rows count from 1 in messages.
class ParquetFile {
 public:
  // `column` names a top-level column of strings or bytes; with Values::messages it may also be one of lists of structures, which
  // next() gives as JSON. Also throws the errors of parquet_plugin().
  enum class Values { text, messages };
  ParquetFile(const std::filesystem::path& path, const std::string& column, Values values = Values::text);

  std::int64_t rows() const { return rows_; }
  // Number of rows read or skipped so far.
  std::int64_t row() const { return row_; }
  void skip(std::int64_t rows);
  // Returns the value of the next row, or nothing after the last row. The bytes stay valid until the next call; they need not be UTF-8,
  // even if the schema says so. Throws for a null value.
  std::optional<std::string_view> next();

 private:
  const std::string name_, column_;
  const Values values_;
  const OctetParquetPlugin& plugin_;
  std::unique_ptr<OctetParquetFile, void (*)(OctetParquetFile*)> file_;
  std::int64_t rows_ = 0, row_ = 0;
};

}  // namespace octet::data
