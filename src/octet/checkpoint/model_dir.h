// Between a model's parameters and the weights of a model directory in the Hugging Face layout. config.json and tokenizer files
// belong to models/ and data/.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "octet/checkpoint/model_weights.h"
#include "octet/checkpoint/weight_files.h"
#include "octet/device/device.h"
#include "octet/parallel/parameter.h"

namespace octet::checkpoint {

// Checks that the directory has what the table names, in its shapes and readable, and nothing else. Throws as load_weights.
void check_weights(const ModelWeights& weights, const parallel::NameTable& table, const std::vector<std::string>& ignorable = {});

// Reads tensors (as WeightReader does, of any form) in the dtype of each parameter's primary() into what of `table` this rank
// holds, the pieces of each parameter whatever the shape of primary(), perhaps none; waits for the queue. Of the files this
// rank's elements alone are read, and the scales of FP8. Missing, extra and misshapen tensors and such as cannot be read are all
// said in one Error{data}, missing ones with the nearest name. Tensors of the directory that match one of the globs in
// `ignorable` (a tied "lm_head.weight") are passed over, and so always are "*rotary_emb.inv_freq". On the meta device only the
// checks are made.
void load_weights(Queue& queue, const ModelWeights& weights, const parallel::NameTable& table,
                  const std::vector<std::string>& ignorable = {});

// Gives all elements of a global parameter's primary, in its own dtype and any shape, contiguous in host memory that stays as it
// is until the next call.
using WholeParameter = std::function<Tensor(const parallel::Parameter& parameter)>;

// Writes the parameters' external tensors (weight_files.h); those of which `is_fp8` says so as codes and scales.
// `whole` is called once for each parameter, in the order of the table, where the entries of a parameter follow one another:
// it may be collective. Then one rank saves and the others join; when the disk is full all calls are made all the same, so
// that nobody is left waiting.
void save_weights(const std::filesystem::path& dir, const parallel::NameTable& table, const OutputForm& form,
                  const WholeParameter& whole, const std::function<bool(const parallel::NameEntry&)>& is_fp8 = {});
// Of primaries that lie whole on the device of `queue`. On the meta device nothing happens.
void save_weights(Queue& queue, const std::filesystem::path& dir, const parallel::NameTable& table, const OutputForm& form);
// The calls of `whole` that save_weights makes, and nothing else.
void join_save_weights(const parallel::NameTable& table, const WholeParameter& whole);

}  // namespace octet::checkpoint
