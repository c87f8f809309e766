// Gap filling on an engine's virtual busy list, and the two-parameter transfer cost.

#include "card/virtual_clock.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "card/stream.h"

namespace openspyre::card {

int64_t BusyList::reserve(int64_t earliest, int64_t length) {
  // The common case: nothing is busy at or after `earliest`.
  if (size() == 0 || busy_.back().end <= earliest) {
    if (length > 0) insert(busy_.size(), earliest, earliest + length);
    return earliest;
  }
  size_t at = static_cast<size_t>(
      std::upper_bound(busy_.begin() + static_cast<ptrdiff_t>(head_), busy_.end(), earliest,
                       [](int64_t time, const Interval& i) { return time < i.end; }) -
      busy_.begin());
  int64_t start = earliest;
  for (; at < busy_.size(); ++at) {
    if (busy_[at].start - start >= length) break;
    start = busy_[at].end;
  }
  if (length > 0) insert(at, start, start + length);
  return start;
}

void BusyList::insert(size_t at, int64_t start, int64_t end) {
  const bool joins_left = at > head_ && busy_[at - 1].end == start;
  const bool joins_right = at < busy_.size() && busy_[at].start == end;
  if (joins_left && joins_right) {
    busy_[at - 1].end = busy_[at].end;
    busy_.erase(busy_.begin() + static_cast<ptrdiff_t>(at));
  } else if (joins_left) {
    busy_[at - 1].end = end;
  } else if (joins_right) {
    busy_[at].start = start;
  } else {
    busy_.insert(busy_.begin() + static_cast<ptrdiff_t>(at), Interval{start, end});
  }
  if (size() > kMaxIntervals) {
    busy_[head_ + 1].start = busy_[head_].start;
    ++head_;
  }
  if (head_ > 64 && head_ > size()) {
    busy_.erase(busy_.begin(), busy_.begin() + static_cast<ptrdiff_t>(head_));
    head_ = 0;
  }
}

void BusyList::forget_before(int64_t time) {
  while (head_ < busy_.size() && busy_[head_].end <= time) ++head_;
  if (head_ == busy_.size()) {
    busy_.clear();
    head_ = 0;
  }
}

namespace {
int64_t linear_cost(int64_t latency_ns, int64_t bytes, double bytes_per_ns) {
  if (bytes < 0)
    throw std::invalid_argument("a transfer of " + std::to_string(bytes) + " bytes has no cost");
  return latency_ns + static_cast<int64_t>(std::ceil(static_cast<double>(bytes) / bytes_per_ns));
}
}  // namespace

int64_t CostModel::transfer_ns(Engine engine, int64_t bytes) const {
  switch (engine) {
    case Engine::H2D:
      return linear_cost(transfer_latency_ns, bytes, h2d_bytes_per_ns);
    case Engine::D2H:
      return linear_cost(transfer_latency_ns, bytes, d2h_bytes_per_ns);
    default:
      throw std::invalid_argument(std::string("engine ") + engine_name(engine) +
                                  " moves no bytes over the link; transfer costs exist for H2D "
                                  "and D2H");
  }
}

int64_t CostModel::d2d_ns(int64_t bytes) const {
  return linear_cost(transfer_latency_ns, bytes, d2d_bytes_per_ns);
}

const char* engine_name(Engine engine) {
  switch (engine) {
    case Engine::H2D:
      return "H2D";
    case Engine::D2H:
      return "D2H";
    case Engine::Compute:
      return "Compute";
    case Engine::Host:
      return "HostCompute";
  }
  return "unknown engine";
}

}  // namespace openspyre::card
