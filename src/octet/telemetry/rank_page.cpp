#include "octet/telemetry/rank_page.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>
#include <utility>

#include "octet/base/require.h"
#include "octet/base/system_call.h"

namespace octet::telemetry {
namespace {

constexpr std::size_t kPage = 4096;
constexpr auto kRelaxed = std::memory_order_relaxed;

std::size_t bytes_of(int ranks) { return kPage * static_cast<std::size_t>(ranks); }

// The page that a supervisor made for this process, or null.
RankPage* inherited_page() {
  const char* const value = std::getenv("OCTET_PAGE");
  int fd = -1, rank = -1;
  if (!value || std::sscanf(value, "%d:%d", &fd, &rank) != 2 || fd < 0 || rank < 0) return nullptr;
  struct stat status {};
  if (::fstat(fd, &status) != 0 || static_cast<std::size_t>(status.st_size) < bytes_of(rank + 1)) return nullptr;
  void* const memory = ::mmap(nullptr, kPage, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(bytes_of(rank)));
  return memory == MAP_FAILED ? nullptr : static_cast<RankPage*>(memory);
}

}  // namespace

std::string_view name_of(Phase phase) {
  constexpr std::array<std::string_view, kPhases> kNames = {"starting", "joining",    "preparing", "loading",
                                                            "training", "evaluating", "saving",    "exporting"};
  const auto index = static_cast<std::size_t>(phase);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string_view name_of(Origin origin) {
  return origin == Origin::memory       ? "memory"
         : origin == Origin::local_disk ? "local disk"
         : origin == Origin::storage    ? "storage"
                                        : "";
}

std::string_view name_of(Exchange exchange) {
  constexpr std::array<std::string_view, 10> kNames = {"none",      "all_gather", "reduce_scatter", "all_reduce", "all_to_all",
                                                       "broadcast", "fetch",      "send",           "receive",    "barrier"};
  const auto index = static_cast<std::size_t>(exchange);
  return index < kNames.size() ? kNames[index] : "unknown";
}

std::string GroupPage::name_text() const {
  std::string text;
  for (const std::atomic<char>& letter : name) {
    const char value = letter.load(kRelaxed);
    if (value == '\0') break;
    text += value;
  }
  return text;
}

void GroupPage::set_name(std::string_view text) {
  for (std::size_t i = 0; i < std::min(text.size(), kName - 1); ++i) name[i].store(text[i], kRelaxed);
}

void GroupPage::clear() {
  waits.store(0, kRelaxed);
  begun.store(0, kRelaxed);
  members.store(0, kRelaxed);
  for (std::atomic<char>& letter : name) letter.store('\0', kRelaxed);
}

std::int64_t monotonic_ns() {
  timespec now{};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  return std::int64_t{now.tv_sec} * 1'000'000'000 + now.tv_nsec;
}

void RankPage::reset() {
  phase.store(Phase::starting, kRelaxed);
  for (std::atomic<std::int64_t>* const number :
       {&step, &start_step, &saved_step, &changed_ns, &first_step_ns, &saved_ns, &tokens, &alive_ns, &marks, &snapshot_step,
        &snapshot_ns, &own_step, &slow_since, &slow_intervals, &unreachable, &steps, &last_step_ns})
    number->store(0, kRelaxed);
  for (std::atomic<std::int64_t>& ns : entered_ns) ns.store(0, kRelaxed);
  for (std::atomic<double>* const number : {&loss, &step_s, &own_s, &slower}) number->store(0, kRelaxed);
  origin.store(Origin::beginning, kRelaxed);
  storage_failed.store(false, kRelaxed);
  for (GroupPage& group : groups) group.clear();
}

void RankPage::enter(Phase next) {
  const std::int64_t now = monotonic_ns();
  std::atomic<std::int64_t>& first = entered_ns[static_cast<std::size_t>(next)];
  if (first.load(kRelaxed) == 0) first.store(now, kRelaxed);
  phase.store(next, kRelaxed);
  changed_ns.store(now, kRelaxed);
  mark();
}

void RankPage::finish_step(std::int64_t finished) {
  const std::int64_t now = monotonic_ns();
  step.store(finished, kRelaxed);
  steps.store(steps.load(kRelaxed) + 1, kRelaxed);
  changed_ns.store(now, kRelaxed);
  last_step_ns.store(now, kRelaxed);
  if (first_step_ns.load(kRelaxed) == 0) first_step_ns.store(now, kRelaxed);
  mark();
}

GroupPage& RankPage::group(std::string_view name) {
  static GroupPage unseen;
  static std::mutex mutex;  // a thread that saves also makes groups
  const std::lock_guard lock(mutex);
  require(!name.empty() && name.size() < GroupPage::kName, "group \"", name, "\": a page has room for names of 1 to ",
          GroupPage::kName - 1, " characters");
  for (GroupPage& page : groups) {
    const std::string own = page.name_text();
    if (own.empty()) page.set_name(name);
    if (own.empty() || own == name) return page;
  }
  return unseen;
}

void RankPage::begin(GroupPage& group, Exchange exchange, double bytes) {
  group.exchange.store(exchange, kRelaxed);
  group.bytes.store(bytes, kRelaxed);
  group.begun.store(group.begun.load(kRelaxed) + 1, kRelaxed);
  mark();
}

RankPage& own_page() {
  static RankPage unseen;
  static RankPage* const inherited = inherited_page();
  return inherited ? *inherited : unseen;
}

RankPages::RankPages(int ranks) : fd_(::memfd_create("octet ranks", 0)), memory_(MAP_FAILED), ranks_(ranks) {
  if (fd_ < 0 || ::ftruncate(fd_, static_cast<off_t>(bytes_of(ranks))) != 0) {
    fail_errno(ExitCode::internal, "cannot make the memory in which ranks report");
  }
  memory_ = ::mmap(nullptr, bytes_of(ranks), PROT_READ | PROT_WRITE, MAP_SHARED, fd_, 0);
  if (memory_ == MAP_FAILED) fail_errno(ExitCode::internal, "cannot map the memory in which ranks report");
  for (int rank = 0; rank < ranks; ++rank) new (static_cast<std::byte*>(memory_) + bytes_of(rank)) RankPage();
}

std::optional<RankPages> RankPages::of(std::int64_t process, int descriptor, int ranks) {
  const std::string path = concat("/proc/", process, "/fd/", descriptor);
  char target[64] = "";  // the process id may belong to another process by now
  if (::readlink(path.c_str(), target, sizeof target - 1) < 0 || !std::string_view(target).starts_with("/memfd:octet ranks"))
    return std::nullopt;
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return std::nullopt;
  struct stat status {};
  const bool fits = ::fstat(fd, &status) == 0 && static_cast<std::size_t>(status.st_size) >= bytes_of(ranks);
  void* const memory = fits ? ::mmap(nullptr, bytes_of(ranks), PROT_READ, MAP_SHARED, fd, 0) : MAP_FAILED;
  if (memory != MAP_FAILED) return RankPages(fd, memory, ranks);
  ::close(fd);
  return std::nullopt;
}

RankPages::~RankPages() {
  if (fd_ < 0) return;
  if (memory_ != MAP_FAILED) ::munmap(memory_, bytes_of(ranks_));
  ::close(fd_);
}

RankPages::RankPages(RankPages&& other) noexcept
    : fd_(std::exchange(other.fd_, -1)), memory_(other.memory_), ranks_(other.ranks_) {}

std::string RankPages::variable(int rank) const { return concat("OCTET_PAGE=", fd_, ":", rank); }

const RankPage& RankPages::page(int rank) const {
  return *reinterpret_cast<const RankPage*>(static_cast<const std::byte*>(memory_) + bytes_of(rank));
}

RankPage& RankPages::page(int rank) { return const_cast<RankPage&>(std::as_const(*this).page(rank)); }

std::vector<const RankPage*> RankPages::range(int rank, int count) const {
  std::vector<const RankPage*> result;
  for (int i = 0; i < count; ++i) result.push_back(&page(rank + i));
  return result;
}

void RankPages::clear() {
  for (int rank = 0; rank < ranks_; ++rank) page(rank).reset();
}

}  // namespace octet::telemetry
