#include "octet/data/corpus_writer.h"

#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>

#include "octet/base/require.h"

namespace octet::data {
namespace fs = std::filesystem;
namespace {

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

std::string temporary_mark() { return ".tmp-"; }

fs::path temporary_name(const fs::path& final_name) {
  fs::path name = final_name;
  return name += concat(temporary_mark(), ::getpid());
}

fs::path folder_of(const fs::path& file) { return file.has_parent_path() ? file.parent_path() : fs::path("."); }

// Temporary files of `final_name` whose process is gone.
void remove_stale(const fs::path& final_name) {
  const std::string begin = final_name.filename().string() + temporary_mark();
  std::error_code error;
  std::vector<fs::path> stale;
  for (const auto& entry : fs::directory_iterator(folder_of(final_name), error)) {
    const std::string name = entry.path().filename().string();
    if (name.compare(0, begin.size(), begin) != 0) continue;
    pid_t process = 0;
    const char* end = name.data() + name.size();
    const auto parsed = std::from_chars(name.data() + begin.size(), end, process);
    if (parsed.ec != std::errc() || parsed.ptr != end || process <= 0) continue;
    if (::kill(process, 0) != 0 && errno == ESRCH) stale.push_back(entry.path());
  }
  for (const fs::path& path : stale) fs::remove(path, error);
}

void rename_file(const fs::path& from, const fs::path& to) {
  demand(::rename(from.c_str(), to.c_str()) == 0, ExitCode::internal, to.string(), ": cannot rename: ", std::strerror(errno));
}

}  // namespace

CorpusWriter::CorpusWriter(const fs::path& prefix, const Tokenizer& tokenizer, std::int64_t max_sequence)
    : paths_(prefix),
      bin_temporary_(temporary_name(paths_.bin)),
      idx_temporary_(temporary_name(paths_.idx)),
      max_sequence_(max_sequence) {
  require(max_sequence >= 1 && max_sequence <= INT32_MAX, "corpus writer: max_sequence ", max_sequence);
  demand(paths_.prefix.has_filename(), ExitCode::config, "output prefix \"", prefix.string(),
         "\" must end in a name, as in data/corpus");
  std::error_code error;
  fs::create_directories(folder_of(paths_.bin), error);
  demand(fs::is_directory(folder_of(paths_.bin)), ExitCode::config, folder_of(paths_.bin).string(),
         ": cannot create this folder: ", error.message());
  remove_stale(paths_.bin);
  remove_stale(paths_.idx);
  info_.tokenizer = tokenizer.name();
  info_.tokenizer_hash = tokenizer.hash();
  info_.vocab_size = tokenizer.vocab_size();
  info_.end_of_document = tokenizer.end_of_document();
  info_.type = token_type_for(info_.vocab_size);
  try {
    bin_ = std::make_unique<FileWriter>(bin_temporary_);
    idx_ = std::make_unique<FileWriter>(idx_temporary_);
    // The header is written by finish(); lengths go straight behind it.
    const std::array<std::byte, kIndexHeaderBytes> header{};
    idx_->write(header);
  } catch (...) {
    remove_temporaries();
    throw;
  }
}

CorpusWriter::~CorpusWriter() {
  if (!finished_) remove_temporaries();
}

void CorpusWriter::remove_temporaries() {
  std::error_code ignored;
  fs::remove(bin_temporary_, ignored);
  fs::remove(idx_temporary_, ignored);
}

void CorpusWriter::append(std::span<const std::int32_t> ids) {
  while (!ids.empty()) {
    if (sequence_tokens_ == max_sequence_) end_sequence();
    const auto room = static_cast<std::size_t>(max_sequence_ - sequence_tokens_);
    const auto now = ids.first(std::min(room, ids.size()));
    const auto width = static_cast<std::size_t>(token_type_bytes(info_.type));
    packed_.resize(now.size() * width);
    std::uint32_t largest = 0;  // as unsigned, negative ids are the largest
    for (const std::int32_t id : now) largest = std::max(largest, static_cast<std::uint32_t>(id));
    require(largest < info_.vocab_size, "tokenizer ", info_.tokenizer, " gave token ", static_cast<std::int32_t>(largest), " of ",
            info_.vocab_size);
    if (width == 2) {
      for (std::size_t i = 0; i < now.size(); ++i) {
        const auto narrow = static_cast<std::uint16_t>(now[i]);
        std::memcpy(packed_.data() + 2 * i, &narrow, 2);
      }
    } else {
      std::memcpy(packed_.data(), now.data(), now.size_bytes());
    }
    const auto bytes = std::as_bytes(std::span(packed_));
    bin_sum_.update(bytes);
    bin_->write(bytes);
    sequence_tokens_ += static_cast<std::int64_t>(now.size());
    document_tokens_ += static_cast<std::int64_t>(now.size());
    ids = ids.subspan(now.size());
  }
}

void CorpusWriter::end_sequence() {
  if (info_.sequences > first_sequence_) continued_.push_back(info_.sequences);
  idx_->write(bytes_of(static_cast<std::int32_t>(sequence_tokens_)));
  ++info_.sequences;
  sequence_tokens_ = 0;
}

bool CorpusWriter::end_document() {
  if (document_tokens_ == 0) return false;
  if (info_.end_of_document) append(std::span(&*info_.end_of_document, 1));
  end_sequence();
  ++info_.documents;
  info_.tokens += document_tokens_;
  document_tokens_ = 0;
  first_sequence_ = info_.sequences;
  return true;
}

// Behind the lengths, which are read back rather than kept in memory: pointers, then the document index.
void CorpusWriter::write_index() {
  std::array<std::byte, kIndexHeaderBytes> header{};
  std::memcpy(header.data(), kIndexMagic.data(), kIndexMagic.size());
  const auto put = [&](std::size_t at, const auto& value) { std::memcpy(header.data() + at, &value, sizeof value); };
  put(9, kIndexVersion);
  put(17, static_cast<std::uint8_t>(info_.type));
  put(18, static_cast<std::uint64_t>(info_.sequences));
  put(26, static_cast<std::uint64_t>(info_.documents + 1));
  idx_->write_at(0, header);

  std::ifstream lengths(idx_temporary_, std::ios::binary);
  lengths.seekg(kIndexHeaderBytes);
  std::vector<std::int32_t> some(std::size_t{1} << 16);
  std::int64_t pointer = 0;
  for (std::int64_t done = 0; done < info_.sequences;) {
    const auto now = std::min(info_.sequences - done, static_cast<std::int64_t>(some.size()));
    lengths.read(reinterpret_cast<char*>(some.data()), now * 4);
    demand(lengths.good(), ExitCode::internal, idx_temporary_.string(), ": cannot read back");
    for (std::int64_t i = 0; i < now; ++i) {
      idx_->write(bytes_of(pointer));
      pointer += some[static_cast<std::size_t>(i)] * token_type_bytes(info_.type);
    }
    done += now;
  }
  std::size_t next_continued = 0;
  for (std::int64_t s = 0; s < info_.sequences; ++s) {
    if (next_continued < continued_.size() && continued_[next_continued] == s) {
      ++next_continued;
    } else {
      idx_->write(bytes_of(s));
    }
  }
  idx_->write(bytes_of(info_.sequences));
}

CorpusInfo CorpusWriter::finish() {
  require(document_tokens_ == 0, "corpus writer: the last document was not ended");
  write_index();
  bin_->finish();
  idx_->finish();
  info_.bin_xxh3 = bin_sum_.hex();
  RunningChecksum idx_sum;
  idx_sum.update(MappedFile(idx_temporary_).bytes());
  info_.idx_xxh3 = idx_sum.hex();
  // An earlier corpus loses its index first: at no moment does one file of each stand under the final names.
  for (const fs::path& path : {paths_.json, paths_.idx}) {
    std::error_code error;
    fs::remove(path, error);
    demand(!error, ExitCode::internal, path.string(), ": cannot replace: ", error.message());
  }
  rename_file(bin_temporary_, paths_.bin);
  rename_file(idx_temporary_, paths_.idx);
  finished_ = true;
  write_file_atomically(paths_.json, to_json(info_));
  return info_;
}

}  // namespace octet::data
