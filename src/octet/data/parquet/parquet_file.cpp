#include "octet/data/parquet/parquet_file.h"

#include <unistd.h>

#include <algorithm>
#include <array>

#include "octet/base/plugin.h"
#include "octet/base/system_call.h"
#include "octet/base/visible.h"

namespace octet::data {
namespace fs = std::filesystem;
namespace {

using Message = std::array<char, 1024>;

// Returns the first sentence of Arrow's message, without a full stop and on one line. The message may quote arbitrary bytes of a
// file.
std::string reason(const Message& message) {
  std::string text = printable(message.data());
  text.resize(std::min(text.size(), text.find(". ")));
  while (!text.empty() && (text.back() == '.' || text.back() == ' ')) text.pop_back();
  return text;
}

const PluginKind& parquet_kind() {
  static const PluginKind kind = {.name = "Parquet",
                                  .file = "octet_parquet.so",
                                  .variable = "OCTET_PARQUET",
                                  .symbol = "octet_parquet_plugin",
                                  .purpose = "Parquet is read by a plugin",
                                  .remedy = "write the texts as JSONL",
                                  .page = "docs/guides/data.md"};
  return kind;
}

}  // namespace

fs::path find_parquet_plugin(const std::string& named, const fs::path& program) {
  return find_plugin(parquet_kind(), named, program);
}

const OctetParquetPlugin& parquet_plugin() {
  static const OctetParquetPlugin* const plugin = open_plugin<OctetParquetPlugin>(parquet_kind(), kOctetParquetVersion);
  return *plugin;
}

ParquetFile::ParquetFile(const fs::path& path, const std::string& column, Values values)
    : name_(path.string()), column_(column), values_(values), plugin_(parquet_plugin()), file_(nullptr, plugin_.close) {
  if (::access(path.c_str(), R_OK) != 0) fail_errno(ExitCode::data, path, "cannot open");
  Message message{};
  file_.reset(plugin_.open(path.c_str(), column.c_str(), values == Values::messages ? 1 : 0, message.data(), message.size()));
  demand(file_ != nullptr, ExitCode::data, name_, ": cannot read this Parquet: ", reason(message));
  rows_ = plugin_.rows(file_.get());
}

void ParquetFile::skip(std::int64_t rows) {
  demand(rows <= rows_ - row_, ExitCode::data, name_, ": cannot skip to row ", row_ + rows + 1, " of ", rows_);
  Message message{};
  demand(plugin_.skip(file_.get(), rows, message.data(), message.size()) == 0, ExitCode::data, name_, ":", row_ + 1,
         ": damaged Parquet here or after it: ", reason(message));
  row_ += rows;
}

std::optional<std::string_view> ParquetFile::next() {
  if (row_ == rows_) return std::nullopt;
  const char* bytes = nullptr;
  std::size_t size = 0;
  Message message{};
  const std::int32_t found = plugin_.next(file_.get(), &bytes, &size, message.data(), message.size());
  ++row_;
  demand(found >= 0, ExitCode::data, name_, ":", row_, ": damaged Parquet: ", reason(message));
  demand(found > 0, ExitCode::data, name_, ":", row_, ": damaged Parquet: no more rows, ", rows_, " were promised");
  demand(bytes != nullptr, ExitCode::data, name_, ":", row_, ": column \"", column_, "\" is null, not a ",
         values_ == Values::messages ? "list of messages" : "string");
  return std::string_view(bytes, size);
}

}  // namespace octet::data
