// Divides a corpus into a part to train on and a part to hold out. The parts depend only on the corpus, the fractions and
// seq_len, so runs with different seeds hold out the same text.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <vector>

#include "octet/data/permutation.h"
#include "octet/data/remainder.h"
#include "octet/data/windows.h"

namespace octet::data {

enum class Part { train, held_out };

// The part for which a run names a source. If some source is `validation`, all windows of an `unnamed` source are trained on;
// otherwise `unnamed` sources are divided by the fractions of the run.
enum class Use { unnamed, train, validation };

// `documents` holds out whole documents, so no document has tokens in both parts. `windows` holds out windows of the stream of
// all documents; a document may then be in both parts.
enum class SplitBy { documents, windows };

// A pseudo-random subset of n windows.
class WindowSplit {
 public:
  // `fractions` is {train, held_out}, as in `data.split`: not negative, with sum 1, otherwise throws Error{config}. A part whose
  // fraction is greater than 0 gets at least one window if there are two or more.
  WindowSplit(std::int64_t windows, std::array<double, 2> fractions);

  std::int64_t count(Part part) const { return part == Part::train ? order_.size() - held_out_ : held_out_; }
  // The window of item i in [0, count(part)). Every window belongs to exactly one part.
  std::int64_t window(Part part, std::int64_t i) const;

 private:
  Permutation order_;
  std::int64_t held_out_;
};

class Split {
 public:
  // The corpus must outlive the Split. By documents, documents are drawn in a pseudo-random order until the held-out part has
  // its fraction of the tokens; a document that would make the part much larger is left to training. If the fractions leave a
  // part empty, or if there are too few documents for both parts, windows are divided instead. Throws Error{data} if the corpus
  // is smaller than one window, and Error{config} like WindowSplit.
  Split(const Corpus& corpus, std::int64_t seq_len, std::array<double, 2> fractions, SplitBy by,
        Packing packing = Packing::stream);

  bool by_documents() const { return !windows_split_.has_value(); }
  // Whether the text that is held out depends on seq_len.
  bool depends_on_seq_len() const { return windows_split_ && count(Part::train) > 0 && count(Part::held_out) > 0; }
  // The text in which the training windows lie. If windows are held out, they also lie in it.
  const Windows& training_text() const { return parts_ ? parts_->train : *windows_; }
  // Returns the windows of training_text() that remain to be trained on after an epoch has used the items i with used[i].
  std::vector<Remainder::Range> left_to_train(const std::vector<bool>& used) const;
  std::int64_t count(Part part) const;
  // Writes item i, in [0, count(part)), to `row`; see Windows::read() for the other arguments.
  void read(Part part, std::int64_t i, std::int64_t vocab_size, Row row, std::vector<std::int32_t>& document_starts,
            std::int32_t base) const;

 private:
  struct Parts {
    Windows train, held_out;
  };
  static std::optional<Parts> divide(const Corpus& corpus, std::int64_t seq_len, double held_out, Packing packing);

  std::optional<Parts> parts_;                // by documents
  std::optional<Windows> windows_;            // of the whole corpus
  std::optional<WindowSplit> windows_split_;  // of these
};

}  // namespace octet::data
