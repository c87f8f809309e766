// The policy and the account of operations that the CPU computes.

#include <c10/util/Exception.h>

#include <mutex>
#include <stdexcept>
#include <unordered_map>

#include "card/runtime.h"
#include "torch/fallback.h"

namespace openspyre::device {
namespace {

std::atomic<FallbackPolicy> policy{FallbackPolicy::Allow};

struct Book {
  std::mutex mutex;
  std::unordered_map<std::string, FallbackAccount*> accounts;
  std::vector<FallbackAccount*> order;  // listed accounts, by first call
};
Book& book() {
  static Book* const instance = new Book;  // leaked: kernels may run during interpreter exit
  return *instance;
}

[[noreturn]] void refuse(const std::string& op, const std::string& arguments) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, op,
      " has no kernel on the spyre device, and the fallback policy is 'error', so the "
      "CPU may not compute it. Arguments: ",
      arguments,
      ". Allow it with torch.spyre.fallback(\"allow\") or OPENSPYRE_FALLBACK=allow, or move the "
      "tensors to the CPU.");
}

}  // namespace

FallbackPolicy fallback_policy() noexcept { return policy.load(std::memory_order_relaxed); }
void set_fallback_policy(FallbackPolicy value) noexcept {
  policy.store(value, std::memory_order_relaxed);
}

const char* fallback_policy_name(FallbackPolicy value) noexcept {
  switch (value) {
    case FallbackPolicy::Allow:
      return "allow";
    case FallbackPolicy::Warn:
      return "warn";
    case FallbackPolicy::Error:
      return "error";
  }
  return "?";
}

FallbackPolicy parse_fallback_policy(const std::string& text) {
  for (FallbackPolicy value :
       {FallbackPolicy::Allow, FallbackPolicy::Warn, FallbackPolicy::Error}) {
    if (text == fallback_policy_name(value)) return value;
  }
  throw std::invalid_argument("fallback policy '" + text +
                              "' is unknown; choose 'allow', 'warn' or 'error'");
}

FallbackAccount& fallback_account(const std::string& op) {
  Book& b = book();
  const std::lock_guard<std::mutex> lock(b.mutex);
  FallbackAccount*& account = b.accounts[op];
  if (account == nullptr) account = new FallbackAccount(op);
  return *account;
}

std::vector<FallbackCount> fallback_counts() {
  Book& b = book();
  const std::lock_guard<std::mutex> lock(b.mutex);
  std::vector<FallbackCount> counts;
  counts.reserve(b.order.size());
  for (const FallbackAccount* account : b.order) {
    counts.push_back({account->name, account->calls.load(), account->bytes_to_host.load(),
                      account->bytes_to_device.load(), account->widened.load(), account->reason});
  }
  return counts;
}

void reset_fallback_counts() {
  Book& b = book();
  const std::lock_guard<std::mutex> lock(b.mutex);
  b.order.clear();
  for (auto& [name, account] : b.accounts) {
    account->calls = 0;
    account->bytes_to_host = 0;
    account->bytes_to_device = 0;
    account->listed = false;
    account->warned = false;
    account->widened = false;
    account->reason.clear();
  }
}

void note_reason(FallbackAccount& account, const std::string& reason) {
  Book& b = book();
  const std::lock_guard<std::mutex> lock(b.mutex);
  if (account.reason != reason) account.reason = reason;
}

void apply_fallback_policy(FallbackAccount& account, const std::string& arguments) {
  switch (fallback_policy()) {
    case FallbackPolicy::Allow:
      return;
    case FallbackPolicy::Error:
      refuse(account.name, arguments);
    case FallbackPolicy::Warn:
      if (!account.warned.exchange(true)) {
        TORCH_WARN(account.name,
                   " has no kernel on the spyre device; the CPU computes it. "
                   "Arguments: ",
                   arguments,
                   ". This is said once per operation; "
                   "torch.spyre.fallback_report() counts all, OPENSPYRE_FALLBACK=allow is silent.");
      }
  }
}

FallbackScope::FallbackScope(const char* op, std::initializer_list<at::Tensor> inputs)
    : account_(fallback_account(op)), scope_(account_.name.c_str()) {
  if (fallback_policy() != FallbackPolicy::Allow) {
    std::string arguments;
    for (const at::Tensor& tensor : inputs) {
      if (!arguments.empty()) arguments += ", ";
      arguments += describe(tensor);
    }
    apply_fallback_policy(account_, arguments);
  }
  for (const at::Tensor& tensor : inputs) {
    if (tensor.defined() && tensor.is_privateuseone()) {
      moved_to_host(tensor);
      if (device_ < 0) device_ = tensor.device().index();
    }
  }
}

FallbackScope::FallbackScope(FallbackAccount& account, c10::DeviceIndex device)
    : account_(account), scope_(account.name.c_str()), device_(device) {}

FallbackScope::~FallbackScope() {
  constexpr auto relaxed = std::memory_order_relaxed;
  account_.calls.fetch_add(1, relaxed);
  account_.bytes_to_host.fetch_add(to_host_, relaxed);
  account_.bytes_to_device.fetch_add(to_device_, relaxed);
  if (!account_.listed.load(relaxed)) {
    Book& b = book();
    const std::lock_guard<std::mutex> lock(b.mutex);
    if (!account_.listed.exchange(true)) b.order.push_back(&account_);
  }
  card::StatsPage* page = card::Runtime::get().stats_page();
  if (page != nullptr && device_ >= 0 && device_ < card::kStatsMaxDevices) {
    card::StatsDevice& words = page->devices[device_];
    card::stat_add(words.fallback_calls, 1);
    card::stat_add(words.fallback_bytes, to_host_ + to_device_);
  }
}

std::string describe(const at::Tensor& tensor) {
  if (!tensor.defined()) return "None";
  std::ostringstream out;
  out << "Tensor " << c10::toString(tensor.scalar_type()) << tensor.sizes();
  if (tensor.layout() == c10::kStrided) {
    out << " strides " << tensor.strides();
    if (tensor.storage_offset() != 0) out << " offset " << tensor.storage_offset();
  } else {
    out << " layout " << tensor.layout();
  }
  out << " on " << tensor.device();
  return out.str();
}

uint64_t mix_seed(uint64_t seed, uint64_t offset) noexcept {
  // The finaliser of splitmix64 (Steele, Lea, Flood 2014), once per word.
  auto mix = [](uint64_t z) {
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
  };
  return mix(mix(seed + 0x9e3779b97f4a7c15ull) + offset * 0x9e3779b97f4a7c15ull);
}

}  // namespace openspyre::device
