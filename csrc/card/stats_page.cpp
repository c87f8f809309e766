// The statistics page: a small file in shared memory, or a private page when that is refused.
#include "card/stats_page.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <system_error>

namespace openspyre::card {

namespace {

// Constants of the file; the Python reader checks the same ones.
static_assert(sizeof(StatsDevice) == 24 * 8 && sizeof(StatsPage) == 40 + 16 * 24 * 8);

StatsPage fallback_page;  // what statistics go to when there is no file

struct Open {
  std::mutex mutex;
  StatsPage* page = nullptr;
  std::string path;
  pid_t owner = 0;
};
Open& state() {
  static Open* open = new Open;  // leaked: counters may be bumped at exit
  return *open;
}

void fill_header(StatsPage& page, pid_t pid) {
  uint64_t now = static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::nanoseconds>(
                                           std::chrono::system_clock::now().time_since_epoch())
                                           .count());
  page.version = kStatsVersion;
  page.pid = static_cast<uint64_t>(pid);
  page.start_unix_ns = now;
  stat_set(page.heartbeat_unix_ns, now);
  // Last: a reader takes a page without its magic for one in the making.
  std::atomic_ref(page.magic).store(kStatsMagic, std::memory_order_release);
}

StatsPage* map_file(const std::string& directory, const std::string& path, std::string& error) {
  auto fail = [&](const char* what) {
    error = "no statistics page: " + std::string(what) + " " + path + ": " + std::strerror(errno);
    return nullptr;
  };
  if (mkdir(directory.c_str(), 0700) != 0 && errno != EEXIST)
    return fail("cannot make the directory of");
  int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  int file = ::open(path.c_str(), flags, 0600);
  if (file < 0 && errno == EEXIST) {
    // Left behind by a dead process that had our process id.
    unlink(path.c_str());
    file = ::open(path.c_str(), flags, 0600);
  }
  if (file < 0) return fail("cannot create");
  void* at = MAP_FAILED;
  // posix_fallocate, not ftruncate: a full file system must fail here and not at a later write.
  int full = posix_fallocate(file, 0, sizeof(StatsPage));
  if (full == 0 && fchmod(file, 0600) == 0)
    at = mmap(nullptr, sizeof(StatsPage), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  if (full != 0) errno = full;
  if (at == MAP_FAILED) {
    fail("cannot map");
    ::close(file);
    unlink(path.c_str());
    return nullptr;
  }
  ::close(file);
  return static_cast<StatsPage*>(at);
}

}  // namespace

namespace {

// Processes that were killed leave their page behind. Whoever opens one next clears those away;
// pages of other users stay, as unlink is refused.
void sweep_dead_pages(const std::string& directory) {
  std::error_code ignored;
  std::filesystem::directory_iterator entry(directory, ignored), end;
  for (; entry != end; entry.increment(ignored)) {
    int pid = 0, length = 0;
    const std::string name = entry->path().filename();
    if (std::sscanf(name.c_str(), "openspyre-%d.stats%n", &pid, &length) != 1) continue;
    if (pid <= 0 || static_cast<size_t>(length) != name.size()) continue;
    if (kill(pid, 0) != 0 && errno == ESRCH) unlink(entry->path().c_str());
  }
}

}  // namespace

StatsPage* open_stats_page(const std::string& directory, std::string* error) {
  Open& open = state();
  std::lock_guard lock(open.mutex);
  if (open.page) return open.page;
  sweep_dead_pages(directory);
  pid_t pid = getpid();
  std::string path = directory + "/openspyre-" + std::to_string(pid) + ".stats", why;
  if (StatsPage* page = map_file(directory, path, why)) {
    open.page = page;
    open.path = path;
    open.owner = pid;
    fill_header(*page, pid);
    return page;
  }
  if (error) *error = why;
  fill_header(fallback_page, pid);
  return &fallback_page;
}

void close_stats_page() {
  Open& open = state();
  // A fork child has one thread, and its copy of the mutex may be locked for ever.
  bool child = open.page && open.owner != getpid();
  std::unique_lock lock(open.mutex, std::defer_lock);
  if (!child) lock.lock();
  if (!open.page) return;
  // The file is replaced by private memory at the same address: late counters of other threads,
  // and those of a fork child, go nowhere instead of faulting or spoiling the parent's page.
  void* at = mmap(open.page, sizeof(StatsPage), PROT_READ | PROT_WRITE,
                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  (void)at;
  if (!child) unlink(open.path.c_str());
  open.page = nullptr;
  open.path.clear();
}

void stat_set(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).store(value, std::memory_order_relaxed);
}

void stat_add(uint64_t& word, uint64_t value) {
  std::atomic_ref(word).fetch_add(value, std::memory_order_relaxed);
}

}  // namespace openspyre::card
