// Copies of model directories, adapters, checkpoints, corpora and texts that are given as s3:// URLs. storage/local_copy.h says
// where they lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "octet/base/retry.h"
#include "octet/storage/local_copy.h"
#include "octet/train/config.h"

namespace octet::train {

// Returns what is told of the progress of a copy with this label.
using ShowCopy = std::function<storage::CopyProgress(const std::string& label)>;

enum class Fetch : std::uint8_t {
  everything,
  architecture,  // of model directories and checkpoints all but the weights; no corpora
};

// Puts the paths of copies into the keys of `config` that hold s3:// URLs, except checkpoint.resume, and except lora.init_from if
// checkpoint.resume names a checkpoint, which has the adapters. `config.copies` remembers the URLs. Requests are tried again for
// checkpoint.retry_s. Throws the errors of storage::local_copy(), and Error{data} if there is nothing under a URL.
void fetch_inputs(Config& config, Fetch what, const ShowCopy& show = {});

// Puts copies that were made before, as in Config::copies, into the keys that hold their URLs. Asks nobody. Returns whether there
// was one.
bool use_copies(Config& config, const std::map<std::string, std::string>& copies);

// The same as fetch_inputs() of model.init_from.
void fetch_base(Config& config, const ShowCopy& show = {});

// The same of checkpoint.resume. Call it before fetch_inputs(): a run whose model directory is gone takes its architecture from
// the checkpoint.
void fetch_resumed(Config& config, Fetch what, const ShowCopy& show = {});

// Returns the path of the copy of a folder: a model directory, an adapter or a checkpoint. Objects in folders below it are left
// out. Returns a path that is no URL as it is. `retry_s` is that of storage::ObjectStore, here and below.
std::filesystem::path fetch_folder(const std::filesystem::path& path, Fetch what = Fetch::everything, const ShowCopy& show = {},
                                   double retry_s = kRetryS);
// The same of a folder where a checkpoint may be asked for. Of the checkpoint.remote of a run it is the newest checkpoint.
std::filesystem::path fetch_checkpoint(const std::filesystem::path& path, Fetch what = Fetch::everything,
                                       const ShowCopy& show = {}, double retry_s = kRetryS);
// Returns what an input of `octet data prepare` stands for: the copy of an object, of all objects below a folder, or in byte
// order of those objects and folders that a pattern (* ? [...]) matches. Returns a path that is no URL as it is.
std::vector<std::filesystem::path> fetch_texts(const std::filesystem::path& path, const ShowCopy& show = {});
// The same of the prefix of a corpus.
std::filesystem::path fetch_corpus(const std::filesystem::path& prefix, const ShowCopy& show = {}, double retry_s = kRetryS);

}  // namespace octet::train
