#include "octet/data/corpus.h"

#include <algorithm>
#include <cstring>
#include <vector>

#include "octet/base/checksum.h"
#include "octet/base/directory.h"
#include "octet/base/json.h"
#include "octet/base/log.h"
#include "octet/base/require.h"
#include "octet/data/corpus_json.h"
#include "octet/telemetry/format.h"
#include "octet/telemetry/rank_page.h"

namespace octet::data {
namespace {

constexpr const char* kFormat = "octet corpus";
constexpr int kVersion = 1;

std::filesystem::path with_suffix(std::filesystem::path prefix, const char* suffix) { return prefix += suffix; }

std::filesystem::path without_suffix(const std::filesystem::path& path) {
  const std::string extension = path.extension().string();
  const bool known = extension == ".bin" || extension == ".idx" || extension == ".json";
  return known ? path.parent_path() / path.stem() : path;
}

MappedFile open_index(const CorpusPaths& paths) {
  demand(path_exists(paths.idx) || path_exists(paths.bin), ExitCode::data, paths.prefix.string(), ": no corpus here (",
         paths.idx.string(), " is missing); `octet data prepare` makes one");
  return MappedFile(paths.idx);
}

std::optional<CorpusInfo> open_info(const CorpusPaths& paths) {
  if (!path_exists(paths.json)) return std::nullopt;
  return parse_corpus_info(read_file(paths.json), paths.json.string());
}

// Converts tokens to 32 bits. A 64-bit value that does not fit becomes -1, which the vocabulary check refuses.
template <class T>
void widen(const std::byte* from, std::span<std::int32_t> out) {
  for (std::size_t i = 0; i < out.size(); ++i) {
    T value;
    std::memcpy(&value, from + i * sizeof(T), sizeof(T));
    if constexpr (sizeof(T) == 8) {
      out[i] = value < 0 || value > INT32_MAX ? -1 : static_cast<std::int32_t>(value);
    } else {
      out[i] = static_cast<std::int32_t>(value);
    }
  }
}

}  // namespace

CorpusPaths::CorpusPaths(const std::filesystem::path& path)
    : prefix(without_suffix(path)),
      bin(with_suffix(prefix, ".bin")),
      idx(with_suffix(prefix, ".idx")),
      json(with_suffix(prefix, ".json")),
      checked(with_suffix(prefix, ".checked")),
      loss_bin(with_suffix(prefix, ".loss.bin")),
      loss_idx(with_suffix(prefix, ".loss.idx")) {}

std::string to_text(const ChatInfo& chat) {
  std::string text;
  const auto line = [&](std::int64_t count, const std::string& what) {
    if (count > 0) text += telemetry::format_count(count) + what + "\n";
  };
  const auto left_out = [&](std::int64_t count, const char* why) {
    line(count, concat(count == 1 ? " conversation is" : " conversations are", " left out: ", why));
  };
  line(chat.cut_tokens, concat(chat.cut_tokens == 1 ? " token" : " tokens", " beyond --max-tokens ",
                               chat.cut_tokens == 1 ? "is" : "are", " cut off"));
  left_out(chat.no_answer, "no answer that is trained on");
  left_out(chat.answer_cut, "--max-tokens cuts off all answers");
  left_out(chat.duplicates, "an earlier one is the same");
  line(chat.dropped_fields, concat(chat.dropped_fields == 1 ? " field of a message is" : " fields of messages are",
                                   " not read, such as a name or images; the text holds only the content"));
  return text;
}

Json to_json(const ChatInfo& chat) {
  return {{"template", chat.form},
          {"train_on", chat.train_on},
          {"cut_tokens", chat.cut_tokens},
          {"no_answer", chat.no_answer},
          {"answer_cut", chat.answer_cut},
          {"duplicates", chat.duplicates},
          {"dropped_fields", chat.dropped_fields}};
}

std::string to_json(const CorpusInfo& info) {
  nlohmann::ordered_json json;
  json["format"] = kFormat;
  json["version"] = kVersion;
  json["tokenizer"] = info.tokenizer;
  json["tokenizer_hash"] = info.tokenizer_hash;
  json["vocab_size"] = info.vocab_size;
  json["end_of_document"] =
      info.end_of_document ? nlohmann::ordered_json(*info.end_of_document) : nlohmann::ordered_json(nullptr);
  json["documents"] = info.documents;
  json["sequences"] = info.sequences;
  json["tokens"] = info.tokens;
  if (info.largest_token) json["largest_token"] = *info.largest_token;
  json["dtype"] = token_type_name(info.type);
  json["bin_xxh3"] = info.bin_xxh3;
  json["idx_xxh3"] = info.idx_xxh3;
  if (!info.command.empty()) json["command"] = info.command;
  if (info.loss) {
    json["trained_tokens"] = info.loss->trained_tokens;
    json["loss_bin_xxh3"] = info.loss->bin_xxh3;
    json["loss_idx_xxh3"] = info.loss->idx_xxh3;
  }
  if (info.chat) json["chat"] = to_json(*info.chat);
  return json.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace) + "\n";
}

CorpusInfo parse_corpus_info(std::string_view text, const std::string& name) {
  const auto json = parse_json(text, name);
  demand(json.is_object() && json.value("format", nlohmann::json()) == kFormat, ExitCode::data, name,
         ": not the description of an octet corpus");
  const auto field = [&](const nlohmann::json& object, const char* key, bool (nlohmann::json::*is_type)() const noexcept) {
    const auto found = object.find(key);
    demand(found != object.end(), ExitCode::data, name, ": \"", key, "\" is missing");
    demand(((*found).*is_type)(), ExitCode::data, name, ": \"", key, "\" is ", shown(*found));
    return *found;
  };
  const auto text_in = [&](const nlohmann::json& object, const char* key) {
    auto text = field(object, key, &nlohmann::json::is_string).get<std::string>();
    demand(text.find('\0') == std::string::npos, ExitCode::data, name, ": \"", key, "\" has a NUL character");
    return text;
  };
  const auto number_in = [&](const nlohmann::json& object, const char* key) {
    const auto value = field(object, key, &nlohmann::json::is_number_unsigned).get<std::uint64_t>();
    demand(value <= INT64_MAX, ExitCode::data, name, ": \"", key, "\" is ", value);
    return static_cast<std::int64_t>(value);
  };
  const auto text_of = [&](const char* key) { return text_in(json, key); };
  const auto number_of = [&](const char* key) { return number_in(json, key); };
  const auto version = number_of("version");
  demand(version == kVersion, ExitCode::data, name, ": version ", version, " is not supported, only ", kVersion);
  CorpusInfo info;
  info.tokenizer = text_of("tokenizer");
  info.tokenizer_hash = text_of("tokenizer_hash");
  info.vocab_size = number_of("vocab_size");
  demand(info.vocab_size >= 1 && info.vocab_size <= INT32_MAX, ExitCode::data, name, ": \"vocab_size\" is ", info.vocab_size);
  if (const auto end = json.find("end_of_document"); end != json.end() && !end->is_null()) {
    const auto id = number_of("end_of_document");
    demand(id < info.vocab_size, ExitCode::data, name, ": \"end_of_document\" is ", id, ", not in the vocabulary");
    info.end_of_document = static_cast<std::int32_t>(id);
  }
  info.documents = number_of("documents");
  info.sequences = number_of("sequences");
  info.tokens = number_of("tokens");
  if (json.contains("largest_token")) info.largest_token = number_of("largest_token");
  const std::string dtype = text_of("dtype");
  bool known = false;
  for (const TokenType type : {TokenType::u8, TokenType::i8, TokenType::i16, TokenType::i32, TokenType::i64, TokenType::u16}) {
    if (dtype == token_type_name(type)) {
      info.type = type;
      known = true;
    }
  }
  demand(known, ExitCode::data, name, ": \"dtype\" is \"", dtype, "\"");
  info.bin_xxh3 = text_of("bin_xxh3");
  info.idx_xxh3 = text_of("idx_xxh3");
  if (json.contains("command")) info.command = text_of("command");
  if (json.contains("loss_bin_xxh3"))
    info.loss = LossMaskInfo{number_of("trained_tokens"), text_of("loss_bin_xxh3"), text_of("loss_idx_xxh3")};
  if (json.contains("chat")) {
    const nlohmann::json chat = field(json, "chat", &nlohmann::json::is_object);
    info.chat = ChatInfo{.form = text_in(chat, "template"),
                         .train_on = text_in(chat, "train_on"),
                         .cut_tokens = number_in(chat, "cut_tokens"),
                         .no_answer = number_in(chat, "no_answer"),
                         .answer_cut = number_in(chat, "answer_cut"),
                         .duplicates = number_in(chat, "duplicates"),
                         .dropped_fields = chat.contains("dropped_fields") ? number_in(chat, "dropped_fields") : 0};
  }
  return info;
}

std::string vocabulary_advice(std::int64_t wanted) {
  return concat(
      "; prepare the corpus with the model's tokenizer and without tokens that the model lacks, or give --model.vocab_size=",
      wanted, " if the model's weights start at random");
}

void demand_corpus(const std::filesystem::path& prefix) {
  const CorpusPaths paths(prefix);
  open_index(paths);
  const FileReader bin(paths.bin);
}

Corpus::Corpus(const std::filesystem::path& prefix, Mask mask, double retry_s)
    : paths_(prefix),
      retry_s_(retry_s),
      idx_(retry(retry_s, [&] { return open_index(paths_); })),
      bin_(retry(retry_s, [&] { return FileReader(paths_.bin); })),
      index_(idx_.bytes(), bin_.size(), paths_.idx.string(), paths_.bin.string()),
      info_(retry(retry_s, [&] { return open_info(paths_); })),
      loss_(retry(retry_s, [&] { return open_loss_mask(mask); })) {
  if (!info_) return;
  const auto check = [&](const char* what, auto said, auto found) {
    demand(said == found, ExitCode::data, paths_.json.string(), ": says ", said, " ", what, ", but ", paths_.idx.string(),
           " has ", found);
  };
  check("documents", info_->documents, documents());
  check("sequences", info_->sequences, sequences());
  check("tokens", info_->tokens, tokens());
  check("as dtype", token_type_name(info_->type), token_type_name(type()));
}

std::optional<Corpus::LossMask> Corpus::open_loss_mask(Mask mask) const {
  if (mask == Mask::ignored) return std::nullopt;
  const bool said = info_ && info_->loss;
  if (!said && !path_exists(paths_.loss_idx)) {
    demand(!path_exists(paths_.loss_bin), ExitCode::data, paths_.loss_bin.string(), ": a loss mask without its index, ",
           paths_.loss_idx.string(), "; bring both files here, or remove this one to train on all tokens");
    return std::nullopt;
  }
  LossMask loss{MappedFile(paths_.loss_idx), FileReader(paths_.loss_bin)};
  const CorpusIndex index(loss.idx.bytes(), loss.bin.size(), paths_.loss_idx.string(), paths_.loss_bin.string());
  bool same = index.tokens() == tokens() && index.documents() == documents();
  for (std::int64_t d = 0; same && d < documents(); ++d) same = index.document_start(d) == document_start(d);
  demand(same && index.type() == TokenType::u8, ExitCode::data, paths_.loss_idx.string(), ": not the loss mask of ",
         paths_.idx.string(), " (", index.documents(), " documents, ", index.tokens(), " entries of ",
         token_type_name(index.type()), "; a mask has uint8 for each token of each document)");
  return loss;
}

void Corpus::read_loss_mask(std::int64_t first, std::span<std::uint8_t> out) const {
  const auto count = static_cast<std::int64_t>(out.size());
  require(loss_ && first >= 0 && count <= tokens() && first <= tokens() - count, "corpus: mask of tokens ", first, " to ",
          first + count, " of ", tokens());
  retry(retry_s_, [&] { loss_->bin.read_at(static_cast<std::size_t>(first), std::as_writable_bytes(out)); });
  const auto wrong = std::find_if(out.begin(), out.end(), [](std::uint8_t value) { return value > 1; });
  demand(wrong == out.end(), ExitCode::data, paths_.loss_bin.string(), ": ", wrong == out.end() ? 0 : int{*wrong},
         " at position ", first + (wrong - out.begin()), " is neither 0 nor 1");
}

void Corpus::read(std::int64_t first, std::span<std::int32_t> out, std::int64_t vocab_size) const {
  const auto count = static_cast<std::int64_t>(out.size());
  require(first >= 0 && count <= tokens() && first <= tokens() - count, "corpus: tokens ", first, " to ", first + count, " of ",
          tokens());
  const auto width = static_cast<std::size_t>(token_type_bytes(type()));
  std::vector<std::byte> packed(out.size() * width);
  retry(retry_s_, [&] { bin_.read_at(static_cast<std::size_t>(first) * width, packed); });
  const std::byte* const from = packed.data();
  switch (type()) {
    case TokenType::u8:
      widen<std::uint8_t>(from, out);
      break;
    case TokenType::i8:
      widen<std::int8_t>(from, out);
      break;
    case TokenType::i16:
      widen<std::int16_t>(from, out);
      break;
    case TokenType::i32:
      widen<std::int32_t>(from, out);
      break;
    case TokenType::i64:
      widen<std::int64_t>(from, out);
      break;
    case TokenType::u16:
      widen<std::uint16_t>(from, out);
      break;
  }
  // Negative tokens become the largest values when they are read as unsigned, so one comparison covers both ends of the range.
  std::uint32_t largest = 0;
  for (const std::int32_t token : out) largest = std::max(largest, static_cast<std::uint32_t>(token));
  if (out.empty() || largest < vocab_size) return;
  const auto wrong = std::find_if(out.begin(), out.end(), [&](std::int32_t token) { return token < 0 || token >= vocab_size; });
  const std::int64_t position = first + (wrong - out.begin());
  std::int64_t value = *wrong;
  if (type() == TokenType::i64) std::memcpy(&value, from + (position - first) * 8, 8);
  const std::int64_t wanted = info_ ? info_->vocab_size : std::min<std::int64_t>(value, INT32_MAX) + 1;
  fail(ExitCode::data, paths_.bin.string(), ": token ", value, " at position ", position, " (document ", document_at(position),
       ") is outside the vocabulary of ", vocab_size,
       value < 0 || value >= wanted || wanted > INT32_MAX ? "; prepare the corpus again" : vocabulary_advice(wanted));
}

bool Corpus::verify_once() const {
  if (!info_) return false;
  namespace fs = std::filesystem;
  std::vector<std::pair<fs::path, std::string>> files = {{paths_.bin, info_->bin_xxh3}, {paths_.idx, info_->idx_xxh3}};
  if (loss_ && info_->loss)
    files.insert(files.end(), {{paths_.loss_bin, info_->loss->bin_xxh3}, {paths_.loss_idx, info_->loss->idx_xxh3}});
  const auto describe = [&] {
    std::string text;
    for (const auto& [path, sum] : files) {
      std::error_code no_time, no_size;
      const auto time = fs::last_write_time(path, no_time);
      const auto size = fs::file_size(path, no_size);
      if (const std::error_code error = no_time ? no_time : no_size)
        throw SystemError(ExitCode::data, concat(path.string(), ": ", error.message()), error.value());
      text += concat(path.filename().string(), " ", size, " ", time.time_since_epoch().count(), " ", sum, "\n");
    }
    return text;
  };
  const std::string now = retry(retry_s_, describe);
  if (retry(retry_s_, [&] { return path_exists(paths_.checked) && read_file(paths_.checked) == now; })) return true;
  constexpr std::int64_t kLong = std::int64_t{4} << 30;  // a few seconds
  if (bin_bytes() > kLong)
    log_info(concat(paths_.bin.string(), ": verifying the checksum of ",
                    telemetry::format_bytes(static_cast<std::uint64_t>(bin_bytes())), ", once"));
  verify();
  try {
    write_file_atomically(paths_.checked, now);
  } catch (const Error&) {
    // The folder is not writable. The next run verifies again.
  }
  return true;
}

bool Corpus::verify() const {
  if (!info_) return false;
  const auto check = [&](const std::filesystem::path& path, const std::string& sum, const std::string& expected) {
    demand(sum == expected, ExitCode::data, path.string(), ": damaged: its XXH3 is ", sum, ", but ", paths_.json.string(),
           " says ", expected);
  };
  const auto mark = [] { telemetry::own_page().mark(); };  // a supervisor must not take hours of reading for a stall
  const auto sum_of = [&](const FileReader& file) { return retry(retry_s_, [&] { return checksum_of(file, mark); }); };
  check(paths_.bin, sum_of(bin_), info_->bin_xxh3);
  check(paths_.idx, sum_of(FileReader(paths_.idx)), info_->idx_xxh3);
  if (loss_ && info_->loss) {
    check(paths_.loss_bin, sum_of(loss_->bin), info_->loss->bin_xxh3);
    check(paths_.loss_idx, sum_of(FileReader(paths_.loss_idx)), info_->loss->idx_xxh3);
  }
  return true;
}

}  // namespace octet::data
