// The texts of a Parquet file: one column, row after row, through the plugin (plugin.h). Memory is that of a page of the file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "octet/data/parquet/plugin.h"

namespace octet::data {

// Where the plugin is: `named` if it is not empty (OCTET_PARQUET), else beside the program, whose folder is `program`, or where
// an installed one lies. Throws Error{config} that says how to get one.
std::filesystem::path find_parquet_plugin(const std::string& named, const std::filesystem::path& program);

// The plugin, loaded at the first call. Throws Error{config} when there is none, or it cannot be loaded.
const OctetParquetPlugin& parquet_plugin();

// Throws Error{data} "FILE: reason" or "FILE:ROW: reason", rows counted from 1.
class ParquetFile {
 public:
  // `column` is a top-level column of strings or bytes. Throws what parquet_plugin() throws as well.
  ParquetFile(const std::filesystem::path& path, const std::string& column);

  std::int64_t rows() const { return rows_; }
  // Rows that are behind this.
  std::int64_t row() const { return row_; }
  void skip(std::int64_t rows);
  // Of the next row, until the next call: any bytes, whatever the schema says; null is an error. Nothing behind the last row.
  std::optional<std::string_view> next();

 private:
  const std::string name_, column_;
  const OctetParquetPlugin& plugin_;
  std::unique_ptr<OctetParquetFile, void (*)(OctetParquetFile*)> file_;
  std::int64_t rows_ = 0, row_ = 0;
};

}  // namespace octet::data
