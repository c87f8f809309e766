// The statistics page as a file: format, mode, end of life, fork.
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <string>
#include <thread>
#include <vector>

#include "card/stats_page.h"
#include "check.h"

using namespace openspyre::card;

namespace {

struct Directory {
  Directory() {
    char name[] = "/tmp/openspyre-test-XXXXXX";
    path = mkdtemp(name);
  }
  ~Directory() { rmdir(path.c_str()); }
  std::string page() const { return path + "/openspyre-" + std::to_string(getpid()) + ".stats"; }
  std::string path;
};

bool exists(const std::string& path) { return access(path.c_str(), F_OK) == 0; }

StatsPage read_file(const std::string& path) {
  StatsPage page{};
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(&page), sizeof page);
  CHECK_EQ(static_cast<size_t>(file.gcount()), sizeof page);
  return page;
}

}  // namespace

TEST(stats_page_is_a_private_file_that_goes_away) {
  Directory directory;
  std::string error;
  StatsPage* page = open_stats_page(directory.path, &error);
  CHECK_EQ(error, "");
  struct stat info;
  CHECK_EQ(stat(directory.page().c_str(), &info), 0);
  CHECK_EQ(info.st_mode & 0777, 0600u);
  CHECK_EQ(static_cast<size_t>(info.st_size), sizeof(StatsPage));
  CHECK(open_stats_page(directory.path, &error) == page);
  stat_set(page->device_count, 2);
  stat_add(page->devices[1].allocations, 40);
  stat_add(page->devices[1].allocations, 2);
  StatsPage seen = read_file(directory.page());
  CHECK_EQ(seen.magic, kStatsMagic);
  CHECK_EQ(seen.version, kStatsVersion);
  CHECK_EQ(seen.pid, static_cast<uint64_t>(getpid()));
  CHECK_EQ(seen.device_count, 2u);
  CHECK_EQ(seen.devices[1].allocations, 42u);
  CHECK(seen.start_unix_ns > 0 && seen.heartbeat_unix_ns >= seen.start_unix_ns);
  close_stats_page();
  CHECK(!exists(directory.page()));
  stat_add(page->devices[0].frees, 1);  // a late counter does no harm
  close_stats_page();
}

TEST(stats_page_replaces_one_left_by_a_dead_process) {
  Directory directory;
  std::ofstream(directory.page()) << "left behind";
  std::string error;
  open_stats_page(directory.path, &error);
  CHECK_EQ(error, "");
  CHECK_EQ(read_file(directory.page()).magic, kStatsMagic);
  close_stats_page();
}

TEST(stats_page_without_a_directory_is_private_memory) {
  std::string error;
  StatsPage* page = open_stats_page("/nonexistent/directory/below", &error);
  CHECK(error.find("no statistics page") != std::string::npos);
  CHECK_EQ(page->magic, kStatsMagic);
  stat_add(page->devices[15].errors, 1);
  close_stats_page();
}

TEST(stats_page_of_the_parent_survives_a_fork_child) {
  Directory directory;
  std::string error;
  StatsPage* page = open_stats_page(directory.path, &error);
  pid_t child = fork();
  if (child == 0) {
    close_stats_page();
    stat_set(page->devices[0].ooms, 77);  // goes nowhere
    _exit(0);
  }
  int status = 0;
  waitpid(child, &status, 0);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  CHECK(exists(directory.page()));
  CHECK_EQ(read_file(directory.page()).devices[0].ooms, 0u);
  stat_set(page->devices[0].ooms, 3);
  CHECK_EQ(read_file(directory.page()).devices[0].ooms, 3u);
  close_stats_page();
}

TEST(stats_page_counts_exactly_under_threads) {
  Directory directory;
  std::string error;
  StatsPage* page = open_stats_page(directory.path, &error);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([page] {
      for (int i = 0; i < 10000; ++i) stat_add(page->devices[0].engine_steps[2], 1);
    });
  for (auto& thread : threads) thread.join();
  CHECK_EQ(page->devices[0].engine_steps[2], 40000u);
  close_stats_page();
}

TEST(stats_page_clears_away_those_of_dead_processes_only) {
  Directory directory;
  const pid_t child = fork();
  if (child == 0) _exit(0);
  waitpid(child, nullptr, 0);
  const std::string dead = directory.path + "/openspyre-" + std::to_string(child) + ".stats";
  const std::string alive = directory.path + "/openspyre-" + std::to_string(getppid()) + ".stats";
  const std::string other = directory.path + "/openspyre-notes.stats";
  for (const std::string& path : {dead, alive, other}) std::ofstream(path) << "page";
  std::string error;
  open_stats_page(directory.path, &error);
  CHECK(!exists(dead));
  CHECK(exists(alive));
  CHECK(exists(other));
  close_stats_page();
  unlink(alive.c_str());
  unlink(other.c_str());
}
