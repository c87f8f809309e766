// Tokens: opaque addresses that stand for blocks.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <random>
#include <set>
#include <thread>

#include "card/memory.h"
#include "check.h"

using namespace openspyre::card;

namespace {

MemoryConfig config_of(uint64_t capacity) {
  MemoryConfig config;
  config.capacity = capacity;
  return config;
}
struct Rig {
  explicit Rig(uint64_t capacity = 1ull << 30)
      : memory(0, std::make_shared<PhysicalMemory>(capacity, false), config_of(capacity)) {}
  DeviceMemory memory;
};

const char* at(const Block* block, uint64_t offset) {
  return static_cast<const char*>(block->token) + offset;
}

}  // namespace

TEST(rt28_interior_addresses_find_their_block_and_no_other) {
  Rig rig;
  TokenSpace& tokens = TokenSpace::get();
  std::vector<Block*> blocks;
  // Spans around slot and chunk limits, host spans longer than the block included.
  for (uint64_t span : {1ull, 127ull, 128ull, 129ull, 4096ull, 1048576ull, 8388480ull, 8388481ull,
                        8388608ull, 16777216ull, 16777217ull, 50000000ull})
    for (int copy = 0; copy < 3; ++copy)
      blocks.push_back(rig.memory.allocate(std::min<uint64_t>(span, 4096), span, 0));
  for (Block* block : blocks) {
    CHECK(tokens.contains(block->token));
    CHECK(block->token_span >= block->size);
    CHECK_EQ(reinterpret_cast<uint64_t>(block->token) % 128, 0u);
    for (uint64_t offset :
         std::vector<uint64_t>{0, 1, block->token_span / 2, block->token_span - 1})
      CHECK(tokens.find(at(block, offset)) == block);
    CHECK(tokens.find(at(block, block->token_span)) == nullptr);  // one past the end
    CHECK(tokens.checked(at(block, block->token_span - 1), block->generation) == block);
    CHECK_THROWS(tokens.checked(at(block, block->token_span), block->generation), BadToken);
  }
  for (Block* block : blocks) {
    void* token = block->token;
    rig.memory.free(block);
    CHECK(tokens.find(token) == nullptr);
  }
}

TEST(foreign_addresses_are_no_tokens) {
  TokenSpace& tokens = TokenSpace::get();
  int local = 0;
  for (const void* address :
       std::vector<const void*>{nullptr, &local, reinterpret_cast<void*>(~0ull)}) {
    CHECK(!tokens.contains(address));
    CHECK(tokens.find(address) == nullptr);
    CHECK_THROWS(tokens.checked(address, 1), BadToken);
  }
}

TEST(a_generation_catches_use_after_free_when_the_address_is_reused) {
  Rig rig;
  TokenSpace& tokens = TokenSpace::get();
  for (uint64_t bytes : {128ull, 100000ull, 40000000ull}) {
    Block* block = rig.memory.allocate(bytes, bytes, 0);
    void* token = block->token;
    uint32_t generation = block->generation;
    rig.memory.free(block);
    CHECK_THROWS(tokens.checked(token, generation), BadToken);
    std::vector<Block*> later;
    for (int i = 0; i < 4; ++i) later.push_back(rig.memory.allocate(bytes, bytes, 0));
    bool reused = false;
    for (Block* b : later) reused = reused || b->token == token;
    CHECK(reused);
    CHECK_THROWS(tokens.checked(token, generation), BadToken);
    for (Block* b : later) rig.memory.free(b);
  }
}

TEST(tokens_of_several_devices_differ_and_die_with_their_device) {
  TokenSpace& tokens = TokenSpace::get();
  void* orphan;
  Rig first;
  Block* block = first.memory.allocate(5000, 5000, 0);
  {
    Rig second;
    Block* other = second.memory.allocate(5000, 5000, 0);
    orphan = other->token;
    CHECK(orphan != block->token && tokens.find(orphan) == other);
  }
  CHECK(tokens.find(orphan) == nullptr);
  CHECK(tokens.find(block->token) == block);
}

TEST(random_tokens_stay_apart_under_threads) {
  Rig rig(8ull << 30);
  std::vector<std::thread> threads;
  std::atomic<int> wrong{0};
  for (int t = 0; t < 4; ++t)
    threads.emplace_back([&, t] {
      std::mt19937 random(t);
      std::vector<Block*> held;
      for (int i = 0; i < 3000; ++i) {
        if (held.size() > 40 || (!held.empty() && random() % 2)) {
          std::swap(held[random() % held.size()], held.back());
          Block* b = held.back();
          wrong += TokenSpace::get().find(at(b, random() % b->token_span)) != b;
          rig.memory.free(b);
          held.pop_back();
        } else {
          uint64_t bytes = 1 + (random() & ((1u << (1 + random() % 25)) - 1));
          held.push_back(rig.memory.allocate(bytes, bytes, 0));
        }
      }
      for (Block* b : held) rig.memory.free(b);
    });
  for (auto& thread : threads) thread.join();
  CHECK_EQ(wrong.load(), 0);
  rig.memory.check_invariants();
}

TEST(rt28_a_host_dereference_of_a_token_faults) {
  Rig rig;
  Block* block = rig.memory.allocate(4096, 4096, 0);
  pid_t child = fork();
  if (child == 0) {
    rlimit none{0, 0};
    setrlimit(RLIMIT_CORE, &none);
    std::signal(SIGSEGV, SIG_DFL);  // not the sanitizers' handlers
    volatile char* token = static_cast<volatile char*>(block->token);
    char seen = *token;
    _exit(seen == 0 ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(waitpid(child, &status, 0), child);
  CHECK(WIFSIGNALED(status) && WTERMSIG(status) == SIGSEGV);
}

TEST(a_fork_child_can_look_tokens_up_whatever_other_threads_did) {
  Rig rig;
  Block* block = rig.memory.allocate(4096, 4096, 0);
  std::atomic<bool> stop{false};
  std::thread busy([&] {
    while (!stop) rig.memory.free(rig.memory.allocate(4096, 4096, 0));
  });
  bool right = true;
  for (int i = 0; i < 20; ++i) {
    pid_t child = fork();
    if (child == 0) {
      alarm(10);  // a lock that is held for ever ends the child, and the test fails
      TokenSpace& tokens = TokenSpace::get();
      _exit(tokens.contains(block->token) && tokens.find(block->token) == block ? 0 : 1);
    }
    int status = 0;
    waitpid(child, &status, 0);
    right = right && WIFEXITED(status) && WEXITSTATUS(status) == 0;
  }
  stop = true;
  busy.join();
  CHECK(right);
}
