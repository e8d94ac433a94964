// Copies model directories, adapters, checkpoints, corpora and texts from s3:// URLs to this machine. storage/local_copy.h says
// where the copies lie.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "octet/base/retry.h"
#include "octet/storage/local_copy.h"
#include "octet/train/config.h"

namespace octet::train {

// Returns the function that receives the progress of a copy with this label.
using ShowCopy = std::function<storage::CopyProgress(const std::string& label)>;

enum class Fetch : std::uint8_t {
  everything,
  architecture,  // of model directories and checkpoints all but the weights; no corpora
};

// Replaces the s3:// URLs in `config` by paths of copies, except checkpoint.resume, and except lora.init_from if
// checkpoint.resume names a checkpoint, which has the adapters. `config.copies` remembers the URLs. Requests are retried for
// checkpoint.retry_s. Throws the errors of storage::local_copy(), and Error{data} if there is nothing under a URL.
void fetch_inputs(Config& config, Fetch what, const ShowCopy& show = {});

// Does the same for model.init_from.
void fetch_base(Config& config, const ShowCopy& show = {});

// Does the same for checkpoint.resume. Call it before fetch_inputs(): a run whose model directory does not exist any more takes
// its architecture from the checkpoint.
void fetch_resumed(Config& config, Fetch what, const ShowCopy& show = {});

// Returns the path of the copy of a folder: a model directory, an adapter or a checkpoint. Objects in folders below it are left
// out. A path that is not a URL is returned unchanged. `retry_s`, here and below, is that of storage::ObjectStore.
std::filesystem::path fetch_folder(const std::filesystem::path& path, Fetch what = Fetch::everything, const ShowCopy& show = {},
                                   double retry_s = kRetryS);
// Does the same for a folder that may be a checkpoint. For the checkpoint.remote of a run, this is its newest checkpoint.
std::filesystem::path fetch_checkpoint(const std::filesystem::path& path, Fetch what = Fetch::everything,
                                       const ShowCopy& show = {}, double retry_s = kRetryS);
// Returns the local paths of an input of `octet data prepare`: the copy of an object, of all objects below a folder, or, in
// byte order, of the objects and folders that a pattern (* ? [...]) matches. A path that is not a URL is returned unchanged.
std::vector<std::filesystem::path> fetch_texts(const std::filesystem::path& path, const ShowCopy& show = {});
// Does the same for the prefix of a corpus.
std::filesystem::path fetch_corpus(const std::filesystem::path& prefix, const ShowCopy& show = {}, double retry_s = kRetryS);

}  // namespace octet::train
