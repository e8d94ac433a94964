#include "octet/data/corpus_writer.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "octet/base/directory.h"
#include "octet/data/set_aside.h"

namespace octet::data {
namespace fs = std::filesystem;
namespace {

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}

// Maps a part file. Returns nothing if the file is missing or has fewer than `bytes` bytes.
std::optional<MappedFile> open_part(const fs::path& path, std::int64_t bytes) {
  if (!path_exists(path)) return std::nullopt;
  MappedFile file(path);
  if (file.bytes().size() < static_cast<std::size_t>(bytes)) return std::nullopt;
  return file;
}

}  // namespace

CorpusWriter::CorpusWriter(CorpusParts parts, const Tokenizer& tokenizer, const Options& options)
    : parts_(std::move(parts)), options_(options), prefix_(tokenizer.prefix().begin(), tokenizer.prefix().end()) {
  require(options.max_sequence >= 1 && options.max_sequence <= INT32_MAX, "corpus writer: max_sequence ", options.max_sequence);
  info_.tokenizer = tokenizer.name();
  info_.tokenizer_hash = tokenizer.hash();
  info_.vocab_size = tokenizer.vocab_size();
  info_.end_of_document = tokenizer.end_of_document();
  info_.type = info_.tokenizer.empty() && info_.vocab_size <= 65536 ? TokenType::u16 : token_type_for(info_.vocab_size);
  // If the part files cannot be read, they stay for the next run.
  resumed_ = options.resume != nullptr && resume(*options.resume);
  options_.resume = nullptr;
  if (resumed_) return;
  try {
    start();
  } catch (...) {
    parts_.remove();
    throw;
  }
}

CorpusWriter::~CorpusWriter() {
  if (!finished_ && !kept_) parts_.remove();
}

void CorpusWriter::start() {
  std::error_code ignored;
  fs::remove(parts_.journal(), ignored);  // it describes the part files that are overwritten now
  bin_ = std::make_unique<FileWriter>(parts_.bin());
  idx_ = std::make_unique<FileWriter>(parts_.idx());
  if (options_.duplicates != Duplicates::ignore) seen_ = std::make_unique<FileWriter>(parts_.seen());
  if (masks()) loss_ = std::make_unique<FileWriter>(parts_.loss_bin());
  // Reserves room for the header, which finish() writes. The lengths follow it.
  const std::array<std::byte, kIndexHeaderBytes> header{};
  idx_->write(header);
  begin_document();
}

bool CorpusWriter::resume(const WriterState& state) {
  const bool looks = options_.duplicates != Duplicates::ignore;
  constexpr std::int64_t kSum = sizeof(Checksum128), kHeader = kIndexHeaderBytes;
  const std::int64_t bin_bytes = state.tokens * width(), idx_bytes = kHeader + 4 * state.sequences;
  const std::int64_t seen_bytes = kSum * state.seen;
  const auto bin = open_part(parts_.bin(), bin_bytes), idx = open_part(parts_.idx(), idx_bytes);
  const auto seen = looks ? open_part(parts_.seen(), seen_bytes) : std::nullopt;
  const auto loss = masks() ? open_part(parts_.loss_bin(), state.tokens) : std::nullopt;
  if (!bin || !idx || (looks && !seen) || (masks() && !loss)) return false;

  bin_sum_.update(bin->bytes().first(static_cast<std::size_t>(bin_bytes)));
  lengths_sum_.update(idx->bytes().first(static_cast<std::size_t>(idx_bytes)).subspan(kHeader));
  for (std::int64_t at = 0; looks && at < seen_bytes; at += kSum) {
    Checksum128 sum;
    std::memcpy(&sum, seen->bytes().data() + at, sizeof sum);
    documents_.insert(sum);
  }
  if (loss) loss_sum_.update(loss->bytes().first(static_cast<std::size_t>(state.tokens)));
  const bool good = bin_sum_.hex() == state.bin_xxh3 && lengths_sum_.hex() == state.lengths_xxh3 &&
                    (!looks || documents_.size() == state.seen) && (!masks() || loss_sum_.hex() == state.loss_xxh3);
  if (!good) {
    bin_sum_.reset();
    lengths_sum_.reset();
    loss_sum_.reset();
    documents_ = {};
    return false;
  }
  info_.documents = state.documents;
  info_.sequences = state.sequences;
  info_.tokens = state.tokens;
  duplicates_ = state.duplicates;
  largest_token_ = state.largest_token;
  trained_tokens_ = state.trained_tokens;
  continued_ = state.continued;
  bin_ = std::make_unique<FileWriter>(parts_.bin(), static_cast<std::size_t>(bin_bytes));
  idx_ = std::make_unique<FileWriter>(parts_.idx(), static_cast<std::size_t>(idx_bytes));
  if (looks) seen_ = std::make_unique<FileWriter>(parts_.seen(), static_cast<std::size_t>(seen_bytes));
  if (masks()) loss_ = std::make_unique<FileWriter>(parts_.loss_bin(), static_cast<std::size_t>(state.tokens));
  begin_document();
  return true;
}

WriterState CorpusWriter::flush() {
  for (const auto* file : {&bin_, &idx_, &seen_, &loss_}) {
    if (*file) (*file)->flush();
  }
  WriterState state{.documents = info_.documents,
                    .sequences = first_sequence_,
                    .tokens = info_.tokens,
                    .duplicates = duplicates_,
                    .largest_token = largest_token_,
                    .seen = documents_.size(),
                    .bin_xxh3 = bin_sum_before_.hex(),
                    .lengths_xxh3 = lengths_sum_before_.hex(),
                    .loss_xxh3 = masks() ? loss_sum_before_.hex() : "",
                    .trained_tokens = trained_tokens_before_};
  for (const std::int64_t sequence : continued_) {
    if (sequence < first_sequence_) state.continued.push_back(sequence);
  }
  return state;
}

void CorpusWriter::append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> trained) {
  require(trained.size() == (masks() ? ids.size() : 0), "corpus writer: ", ids.size(), " tokens, a mask of ", trained.size());
  if (document_tokens_ == 0 && !ids.empty()) put(prefix_);
  put(ids);
  if (!masks()) return;
  loss_->write(std::as_bytes(trained));
  loss_sum_.update(std::as_bytes(trained));
  if (options_.duplicates != Duplicates::ignore) document_sum_.update(std::as_bytes(trained));
  trained_tokens_ += std::count(trained.begin(), trained.end(), std::uint8_t{1});
}

void CorpusWriter::put(std::span<const std::int32_t> ids) {
  while (!ids.empty()) {
    if (sequence_tokens_ == options_.max_sequence) end_sequence();
    const auto room = static_cast<std::size_t>(options_.max_sequence - sequence_tokens_);
    const auto now = ids.first(std::min(room, ids.size()));
    const auto width = static_cast<std::size_t>(this->width());
    packed_.resize(now.size() * width);
    std::uint32_t largest = 0;  // a negative id becomes a large unsigned value, which the check below refuses
    for (const std::int32_t id : now) largest = std::max(largest, static_cast<std::uint32_t>(id));
    require(largest < info_.vocab_size, "tokenizer ", info_.tokenizer, " gave token ", static_cast<std::int32_t>(largest), " of ",
            info_.vocab_size);
    largest_token_ = std::max(largest_token_, std::int64_t{largest});
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
    if (options_.duplicates != Duplicates::ignore) document_sum_.update(bytes);
    bin_->write(bytes);
    sequence_tokens_ += static_cast<std::int64_t>(now.size());
    document_tokens_ += static_cast<std::int64_t>(now.size());
    ids = ids.subspan(now.size());
  }
}

void CorpusWriter::end_sequence() {
  if (info_.sequences > first_sequence_) continued_.push_back(info_.sequences);
  const auto length = static_cast<std::int32_t>(sequence_tokens_);
  lengths_sum_.update(bytes_of(length));
  idx_->write(bytes_of(length));
  ++info_.sequences;
  sequence_tokens_ = 0;
}

std::int64_t CorpusWriter::output_bytes(const More& more) const {
  constexpr std::int64_t kSequence = 4 + 8, kDocument = 8;  // length and pointer; entry of the document index
  const std::int64_t unfinished = (in_document() ? 1 : 0) + more.begun;
  const std::int64_t index = static_cast<std::int64_t>(kIndexHeaderBytes) + kSequence * (info_.sequences + unfinished) +
                             kDocument * (info_.documents + unfinished + 1);
  const std::int64_t all_tokens =
      tokens() + more.tokens + more.begun * static_cast<std::int64_t>(prefix_.size()) + (info_.end_of_document ? more.ended : 0);
  return index + all_tokens * width() + (masks() ? index + all_tokens : 0);
}

std::int64_t CorpusWriter::unwritten_bytes() const {
  constexpr std::int64_t kBuffers = std::int64_t{3} << 20;  // of the .bin, the .idx and the sums of documents
  const std::int64_t mask = masks() ? 12 * (info_.sequences + 1) + 8 * (info_.documents + 2) : 0;
  return kBuffers + 8 * (info_.sequences + 1) + 8 * (info_.documents + 2) + mask;
}

CorpusWriter::Ended CorpusWriter::end_document() {
  if (document_tokens_ == 0) return Ended::empty;
  const bool duplicate = is_duplicate();
  if (duplicate && options_.duplicates == Duplicates::drop) {
    take_document_back();
    return Ended::duplicate;
  }
  if (info_.end_of_document) put(std::span(&*info_.end_of_document, 1));
  end_sequence();
  ++info_.documents;
  info_.tokens += document_tokens_;
  begin_document();
  return duplicate ? Ended::duplicate : Ended::document;
}

bool CorpusWriter::is_duplicate() {
  if (options_.duplicates == Duplicates::ignore) return false;
  const Checksum128 sum = document_sum_.wide();
  if (documents_.insert(sum)) {
    seen_->write(bytes_of(sum));
    return false;
  }
  ++duplicates_;
  return true;
}

void CorpusWriter::take_document_back() {
  bin_->truncate(static_cast<std::size_t>(info_.tokens * width()));
  idx_->truncate(kIndexHeaderBytes + static_cast<std::size_t>(4 * first_sequence_));
  bin_sum_ = bin_sum_before_;
  lengths_sum_ = lengths_sum_before_;
  if (masks()) loss_->truncate(static_cast<std::size_t>(info_.tokens));
  loss_sum_ = loss_sum_before_;
  trained_tokens_ = trained_tokens_before_;
  while (!continued_.empty() && continued_.back() > first_sequence_) continued_.pop_back();
  info_.sequences = first_sequence_;
  begin_document();
}

void CorpusWriter::begin_document() {
  sequence_tokens_ = document_tokens_ = 0;
  first_sequence_ = info_.sequences;
  if (options_.duplicates != Duplicates::ignore) document_sum_.reset();
  bin_sum_before_ = bin_sum_;
  lengths_sum_before_ = lengths_sum_;
  loss_sum_before_ = loss_sum_;
  trained_tokens_before_ = trained_tokens_;
}

// Appends the pointers and the document index to the lengths. Reads the lengths back from the file instead of keeping them in
// memory.
void CorpusWriter::write_index() {
  std::array<std::byte, kIndexHeaderBytes> header{};
  std::memcpy(header.data(), kIndexMagic.data(), kIndexMagic.size());
  const auto put = [&](std::size_t at, const auto& value) { std::memcpy(header.data() + at, &value, sizeof value); };
  put(9, kIndexVersion);
  put(17, static_cast<std::uint8_t>(info_.type));
  put(18, static_cast<std::uint64_t>(info_.sequences));
  put(26, static_cast<std::uint64_t>(info_.documents + 1));
  idx_->write_at(0, header);

  const FileReader lengths(parts_.idx());
  std::vector<std::int32_t> some(std::size_t{1} << 16);
  std::int64_t pointer = 0;
  for (std::int64_t done = 0; done < info_.sequences;) {
    const auto now = std::min(info_.sequences - done, static_cast<std::int64_t>(some.size()));
    lengths.read_at(kIndexHeaderBytes + 4 * static_cast<std::size_t>(done),
                    std::as_writable_bytes(std::span(some).first(static_cast<std::size_t>(now))));
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

// Copies the finished .idx. Only the type and the byte offsets differ.
void CorpusWriter::write_loss_index() {
  const MappedFile idx(parts_.idx());
  FileWriter out(parts_.loss_idx());
  const auto pointers = kIndexHeaderBytes + 4 * static_cast<std::size_t>(info_.sequences);
  std::vector<std::byte> header(idx.bytes().begin(), idx.bytes().begin() + kIndexHeaderBytes);
  header[17] = static_cast<std::byte>(TokenType::u8);
  out.write(header);
  out.write(idx.bytes().subspan(kIndexHeaderBytes, pointers - kIndexHeaderBytes));
  for (std::int64_t s = 0; s < info_.sequences; ++s) {
    std::int64_t pointer = 0;
    std::memcpy(&pointer, idx.bytes().data() + pointers + 8 * static_cast<std::size_t>(s), sizeof pointer);
    pointer /= width();
    out.write(bytes_of(pointer));
  }
  out.write(idx.bytes().subspan(pointers + 8 * static_cast<std::size_t>(info_.sequences)));
  out.finish();
}

CorpusInfo CorpusWriter::finish(const std::string& command, const std::optional<ChatInfo>& chat) {
  require(document_tokens_ == 0, "corpus writer: the last document was not ended");
  info_.command = command;
  info_.chat = chat;
  info_.largest_token = largest_token_;
  if (info_.tokenizer.empty()) info_.vocab_size = largest_token_ + 1;
  write_index();
  bin_->finish();
  idx_->finish();
  seen_.reset();
  info_.bin_xxh3 = bin_sum_.hex();
  info_.idx_xxh3 = checksum_of(FileReader(parts_.idx()));
  if (masks()) {
    loss_->finish();
    write_loss_index();
    info_.loss = LossMaskInfo{trained_tokens_, loss_sum_.hex(), checksum_of(FileReader(parts_.loss_idx()))};
  }
  const CorpusPaths& finals = parts_.finals();
  if (!command.empty()) set_corpus_aside(finals, command);
  // Deletes the index of an earlier corpus first, so that an old index never exists together with a new .bin.
  for (const fs::path& path : {finals.json, finals.idx, finals.loss_idx, finals.loss_bin}) {
    if (::unlink(path.c_str()) != 0 && errno != ENOENT) fail_errno(ExitCode::internal, path, "cannot replace");
  }
  // Says whose files these are before there are any, so that the same command replaces what a kill leaves here.
  write_file_atomically(finals.json, to_json(info_));
  rename_file(parts_.bin(), finals.bin);
  if (masks()) {
    rename_file(parts_.loss_bin(), finals.loss_bin);
    rename_file(parts_.loss_idx(), finals.loss_idx);
  }
  rename_file(parts_.idx(), finals.idx);
  sync_directory(finals.idx.has_parent_path() ? finals.idx.parent_path() : ".");
  finished_ = true;
  parts_.remove();
  return info_;
}

}  // namespace octet::data
