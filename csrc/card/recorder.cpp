// The buffer behind profilers.

#include "card/recorder.h"

#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <mutex>
#include <unordered_map>

#include "card/scheduler.h"

namespace openspyre::card {

namespace {

thread_local std::vector<uint64_t> t_operations;

struct Sources {
  std::mutex mutex;
  std::vector<std::string> texts{""};
  std::unordered_map<std::string, uint32_t> numbers{{"", 0}};
};
Sources& sources() {
  static auto* table = new Sources;  // leaked: sessions may outlive static destruction
  return *table;
}

}  // namespace

uint32_t source_number(const std::string& text) {
  Sources& table = sources();
  const std::lock_guard<std::mutex> lock(table.mutex);
  const auto [found, fresh] =
      table.numbers.try_emplace(text, static_cast<uint32_t>(table.texts.size()));
  if (fresh) table.texts.push_back(text);
  return found->second;
}

std::string source_text(uint32_t number) {
  Sources& table = sources();
  const std::lock_guard<std::mutex> lock(table.mutex);
  return number < table.texts.size() ? table.texts[number] : std::string();
}

Recorder& Recorder::get() {
  static auto* recorder = new Recorder;  // leaked: workers may outlive static destruction
  return *recorder;
}

std::unique_ptr<Recorder::Chunk> Recorder::make_chunk() {
  auto chunk = std::make_unique<Chunk>(kChunk);
  for (RecordedStep& entry : *chunk) entry.name.reserve(63);
  return chunk;
}

uint64_t Recorder::start() {
  std::deque<std::unique_ptr<Chunk>> fresh;
  for (size_t i = 0; i < kChunksAtStart; ++i) fresh.push_back(make_chunk());
  const std::lock_guard<std::mutex> lock(shared().mutex);
  if (listeners_.load(std::memory_order_relaxed) == 0) chunks_ = std::move(fresh);
  listeners_.fetch_add(1, std::memory_order_relaxed);
  return next_;
}

Recorder::Recording Recorder::copy(uint64_t begin) const {
  Recording out;
  out.dropped = dropped_;
  const uint64_t from = std::max(begin, first_);
  out.steps.reserve(static_cast<size_t>(next_ - from));
  for (uint64_t slot = from; slot < next_; ++slot) {
    const auto at = static_cast<size_t>(slot - first_);
    out.steps.push_back((*chunks_[at / kChunk])[at % kChunk]);
  }
  return out;
}

Recorder::Recording Recorder::peek(uint64_t begin) {
  const std::lock_guard<std::mutex> lock(shared().mutex);
  return copy(begin);
}

Recorder::Recording Recorder::stop(uint64_t begin) {
  std::deque<std::unique_ptr<Chunk>> old;  // destroyed behind the lock
  const std::lock_guard<std::mutex> lock(shared().mutex);
  Recording out = copy(begin);
  if (listeners_.fetch_sub(1, std::memory_order_relaxed) == 1) {
    old = std::move(chunks_);
    chunks_.clear();
    first_ = next_;
    dropped_ = 0;
  }
  return out;
}

uint64_t Recorder::add(const Step& step, uint64_t correlation, int device, StreamId stream,
                       int64_t submit_begin_wall, int64_t submit_virtual) {
  if (!on()) return kNone;  // the last listener left meanwhile
  const auto at = static_cast<size_t>(next_ - first_);
  if (at >= kMostEntries) {
    ++dropped_;
    return kNone;
  }
  if (at / kChunk >= chunks_.size()) chunks_.push_back(make_chunk());
  RecordedStep& entry = (*chunks_[at / kChunk])[at % kChunk];
  entry.correlation = correlation;
  entry.operation = t_operations.empty() ? 0 : t_operations.back();
  entry.name = step.name;
  entry.sources = step.sources;
  entry.engine = step.engine;
  entry.kind = step.kind;
  entry.device = device;
  entry.stream = stream;
  entry.submit_thread = thread_id();
  entry.submit_begin_wall = entry.submit_end_wall = submit_begin_wall;
  entry.submit_virtual = submit_virtual;
  entry.bytes = step.bytes;
  return next_++;
}

RecordedStep* Recorder::find(uint64_t slot) {
  if (slot == kNone || slot < first_ || slot >= next_) return nullptr;
  const auto at = static_cast<size_t>(slot - first_);
  return &(*chunks_[at / kChunk])[at % kChunk];
}

void Recorder::push_operation(uint64_t id) { t_operations.push_back(id); }

void Recorder::pop_operation() {
  if (!t_operations.empty()) t_operations.pop_back();  // listening began inside of the operation
}

int64_t Recorder::wall_ns() {
  timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return static_cast<int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

int Recorder::thread_id() {
  thread_local const int id = static_cast<int>(gettid());
  return id;
}

}  // namespace openspyre::card
