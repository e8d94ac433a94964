// The present activity of a rank, for its supervisor: a page of memory that both share. A rank changes it by plain stores, so
// it costs nothing, and it can be read even if the rank hangs or has been killed.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace octet::telemetry {

enum class Phase : std::uint32_t {
  starting,   // reads its configuration
  joining,    // meets the other ranks
  preparing,  // opens the corpus, plans memory, makes the model
  loading,    // reads a checkpoint, if there is one
  training,
  evaluating,
  saving,
  exporting,  // writes the trained model
};
inline constexpr int kPhases = 8;
inline constexpr int kGroups = 16;  // a page has room for so many groups of a rank
std::string_view name_of(Phase phase);

// The source of the state from which a rank continued.
enum class Origin : std::uint32_t { beginning, storage, memory, local_disk };
// "" for a run that began from nothing.
std::string_view name_of(Origin origin);

enum class Exchange : std::uint32_t {
  none,
  all_gather,
  reduce_scatter,
  all_reduce,
  all_to_all,
  broadcast,
  fetch,
  send,
  receive,
  barrier,
};
std::string_view name_of(Exchange exchange);

// The activity of a rank in one of its groups.
struct GroupPage {
  static constexpr std::size_t kName = 24;
  std::array<std::atomic<char>, kName> name{};      // of the group; "": nobody uses this page
  std::atomic<Exchange> exchange = Exchange::none;  // the last that has begun
  std::atomic<std::uint32_t> members = 0;           // a hash of its ranks: groups of other ranks have the same name
  std::atomic<std::int64_t> begun = 0;              // exchanges; on a GPU those that the host has enqueued
  std::atomic<double> bytes = 0;                    // what this rank sends in the last exchange
  std::atomic<std::uint32_t> waits = 0;             // 1: the host waits for other ranks of the group

  std::string name_text() const;
  void set_name(std::string_view text);
  // Frees the page for another group.
  void clear();
};

// Only the rank writes its page. Times are nanoseconds of CLOCK_MONOTONIC, which all processes of a machine share; 0: not yet.
struct RankPage {
  std::atomic<Phase> phase = Phase::starting;
  std::atomic<std::int64_t> step = 0;                           // finished
  std::atomic<std::int64_t> start_step = 0;                     // from which it goes on or went back to; known once it trains
  std::atomic<std::int64_t> saved_step = 0;                     // of the newest checkpoint in the run's folder; 0: none
  std::atomic<std::int64_t> changed_ns = 0;                     // when phase or step changed
  std::atomic<std::int64_t> first_step_ns = 0;                  // when the first step of this process was finished
  std::array<std::atomic<std::int64_t>, kPhases> entered_ns{};  // when each phase began, the first time
  std::atomic<std::int64_t> saved_ns = 0;                       // when this process has published it
  // Rank 0 writes the loss, the duration and the tokens seen when it logs a step. step_s is 0 until then.
  std::atomic<double> loss = 0, step_s = 0;
  std::atomic<std::int64_t> tokens = 0;
  std::atomic<std::int64_t> alive_ns = 0;  // when the thread of the rendezvous last ran; it runs about once a second
  std::atomic<bool> storage_failed = false;  // the rank ends because a file could not be read, for a reason that may pass
  std::atomic<std::int64_t> marks = 0;     // grows with everything that the rank shows here
  std::array<GroupPage, kGroups> groups{};

  // New members follow older ones, so that `octet status` of another build still finds those.
  std::atomic<Origin> origin = Origin::beginning;   // known once it trains
  std::atomic<std::int64_t> snapshot_step = 0;      // of its newest snapshot in memory, maybe of an earlier process; 0: none
  std::atomic<std::int64_t> snapshot_ns = 0;        // when that was complete, or when the rank went on from it
  std::atomic<double> own_s = 0;                    // of a step, without waits for others (stragglers.h); 0: not known yet
  std::atomic<std::int64_t> own_step = 0;           // the logged step up to which own_s is a mean
  std::atomic<std::int64_t> slow_since = 0;         // the first step since which the rank is a straggler; 0: it is none
  std::atomic<std::int64_t> slow_intervals = 0;     // since then, in which it was slow
  std::atomic<double> slower = 0;                   // by this share of the median's speed
  std::atomic<std::int64_t> unreachable = 0;        // 1 + the first rank that this one cannot connect to; 0: none
  std::atomic<std::int64_t> steps = 0;              // that this process has finished, those after a rollback counted again
  std::atomic<std::int64_t> last_step_ns = 0;       // when the last of them was finished

  // Empties the page for a process that starts anew. Others may read it at the same time.
  void reset();
  void enter(Phase next);
  void finish_step(std::int64_t finished);
  // Returns the page of a group. The name must fit, so that no two groups share a page. Groups for which there is no room share
  // a page that nobody reads.
  GroupPage& group(std::string_view name);
  void begin(GroupPage& group, Exchange exchange, double bytes);
  // Shows that the rank still makes progress.
  void mark() { marks.store(marks.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed); }
};
static_assert(sizeof(RankPage) <= 4096 && std::atomic<std::int64_t>::is_always_lock_free);

std::int64_t monotonic_ns();

// Returns the page of this process: the one that the variable OCTET_PAGE names, or one that nobody reads.
RankPage& own_page();

// The pages of all ranks that a supervisor starts.
class RankPages {
 public:
  // Makes pages in memory that its children inherit. Throws Error{internal}.
  explicit RankPages(int ranks);
  // Opens the pages of a running supervisor on this machine, for reading. Returns nothing if they cannot be opened.
  static std::optional<RankPages> of(std::int64_t process, int descriptor, int ranks);
  ~RankPages();
  RankPages(RankPages&& other) noexcept;
  RankPages& operator=(RankPages&&) = delete;

  int descriptor() const { return fd_; }
  // "OCTET_PAGE=...", for the environment of a rank.
  std::string variable(int rank) const;
  const RankPage& page(int rank) const;
  RankPage& page(int rank);
  // Returns the pages of the first `count` ranks, or of `count` ranks from `rank` on.
  std::vector<const RankPage*> first(int count) const { return range(0, count); }
  std::vector<const RankPage*> range(int rank, int count) const;
  int ranks() const { return ranks_; }
  // Empties all pages, for ranks that start again.
  void clear();

 private:
  RankPages(int fd, void* memory, int ranks) : fd_(fd), memory_(memory), ranks_(ranks) {}

  int fd_;
  void* memory_;
  int ranks_;
};

}  // namespace octet::telemetry
