// What the program and its Parquet plugin say to each other, in C: the two may be built by different compilers, and only the
// plugin is linked with Arrow.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

// One column of one file, read from its first row to its last. Not for several threads at once.
struct OctetParquetFile;

// Where a function fails it writes why into `error`, at most `error_size` bytes with the NUL at their end.
struct OctetParquetPlugin {
  std::int32_t version;  // kOctetParquetVersion of the header that the plugin was built with
  // `column` is the name of a top-level column of texts (BYTE_ARRAY; required or optional, not repeated), UTF-8. nullptr: failed.
  OctetParquetFile* (*open)(const char* path, const char* column, char* error, std::size_t error_size);
  // Of the whole file.
  std::int64_t (*rows)(const OctetParquetFile* file);
  // Passes over rows, at most as many as are left. 0, or -1: failed.
  std::int32_t (*skip)(OctetParquetFile* file, std::int64_t rows, char* error, std::size_t error_size);
  // The next row: 1, and `*bytes` is nullptr for null, else *size bytes that stay until the next call. 0: no more rows. -1:
  // failed.
  std::int32_t (*next)(OctetParquetFile* file, const char** bytes, std::size_t* size, char* error, std::size_t error_size);
  void (*close)(OctetParquetFile* file);
};

// The one symbol of a plugin.
const OctetParquetPlugin* octet_parquet_plugin();
}

// Raised with every change of the above.
constexpr std::int32_t kOctetParquetVersion = 1;
