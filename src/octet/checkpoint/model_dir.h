// Loads and saves a model's parameters as the weights of a model directory in the Hugging Face layout. The rooms models/ and
// data/ read and write config.json and the tokenizer's files.
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

// Checks that the directory holds exactly the tensors of `table`, with their shapes and in a form that can be read. Throws the
// errors of load_weights().
void check_weights(const ModelWeights& weights, const parallel::NameTable& table, const std::vector<std::string>& ignorable = {});

// Checks the weights and then overwrites the parameters in `table` with them, in the dtype of each parameter's primary(). Fills
// only the pieces of a parameter that this rank holds, for any shape of primary(), and reads only these elements and the scales
// of FP8 weights from the files. Returns when the copies to the device are done.
//
// Throws one Error{data} that lists all tensors that are missing (with the nearest name), unexpected, of a different shape or
// unreadable. Tensors of the directory that match a glob of `ignorable` (such as a tied "lm_head.weight") or
// "*rotary_emb.inv_freq" may be there without being in the table. On the meta device, only checks.
//
// Each parameter is overwritten within a call fill(parameter, write), if `fill` is given (ParameterStore::fill). The entries of a
// parameter must be consecutive.
using FillParameter = std::function<void(parallel::Parameter& parameter, const std::function<void()>& write)>;
void load_weights(Stream& stream, const ModelWeights& weights, const parallel::NameTable& table,
                  const std::vector<std::string>& ignorable = {}, const FillParameter& fill = {});

// Returns the table without the tracked parameters that the directory lacks. Those keep their initial values.
parallel::NameTable entries_in(const ModelWeights& weights, parallel::NameTable table);

// Returns how an entry is written. A tracked parameter is always written in F32.
OutputWeight output_weight(const parallel::NameEntry& entry, bool fp8);

// Returns all elements of a parameter's primary across all ranks, in its own dtype and any shape, contiguous in host memory. The
// tensor stays valid until the next call.
using WholeParameter = std::function<Tensor(const parallel::Parameter& parameter)>;

// Writes the tensors of `table` to `dir` (weight_files.h). Entries for which `is_fp8` returns true are written as codes and
// scales.
//
// Calls `whole` once for each parameter, in the order of the table, in which the entries of a parameter must be consecutive.
// `whole` may be a collective operation: then one rank calls save_weights() and the others call join_save_weights(). If writing
// fails, save_weights() still makes the remaining calls before it throws, so that no rank waits for ever.
void save_weights(const std::filesystem::path& dir, const parallel::NameTable& table, const OutputForm& form,
                  const WholeParameter& whole, const std::function<bool(const parallel::NameEntry&)>& is_fp8 = {});
// Writes parameters whose primaries are whole on the device of `stream`. Does nothing on the meta device.
void save_weights(Stream& stream, const std::filesystem::path& dir, const parallel::NameTable& table, const OutputForm& form);
// Makes the calls of `whole` that save_weights() makes, and does nothing else.
void join_save_weights(const parallel::NameTable& table, const WholeParameter& whole);

}  // namespace octet::checkpoint
