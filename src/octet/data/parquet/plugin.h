// The interface between the program and its Parquet plugin. It is in C because the two may be built by different compilers. Only the
// plugin is linked with Arrow.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// A reader of one column of one file, from the first row to the last. Only one thread may use it at a time.
struct OctetParquetFile;

// A function that fails writes the reason to `error`: at most `error_size` bytes, including the NUL at the end.
struct OctetParquetPlugin {
  std::int32_t version;  // kOctetParquetVersion of the header that the plugin was built with
  // `column` is the UTF-8 name of a top-level column of strings (BYTE_ARRAY; required or optional, not repeated), or if `lists`
  // is not 0 also of lists of structures, which are conversations: next() then gives the list as JSON, with the fields of each
  // structure that are strings, or belong to a message (weight, tool_calls, ...), and are not null. If `lists` is not 0 and a
  // row has a value in a column "system", "tools" or "functions", next() gives an object that holds the conversation and these.
  // A structure, list or decimal number becomes a list with a string that names its kind. Returns nullptr on failure.
  OctetParquetFile* (*open)(const char* path, const char* column, std::int32_t lists, char* error, std::size_t error_size);
  // The number of rows in the file.
  std::int64_t (*rows)(const OctetParquetFile* file);
  // Skips `rows` rows, or the remaining rows if there are fewer. Returns 0, or -1 on failure.
  std::int32_t (*skip)(OctetParquetFile* file, std::int64_t rows, char* error, std::size_t error_size);
  // Reads the next row. Returns 1 and sets `*bytes` to its `*size` bytes, which stay valid until the next call, or to nullptr for a null
  // value. Returns 0 after the last row and -1 on failure.
  std::int32_t (*next)(OctetParquetFile* file, const char** bytes, std::size_t* size, char* error, std::size_t error_size);
  void (*close)(OctetParquetFile* file);
};

// The only symbol that a plugin exports.
const OctetParquetPlugin* octet_parquet_plugin();
}

// Increase this with every change of the interface.
constexpr std::int32_t kOctetParquetVersion = 2;
