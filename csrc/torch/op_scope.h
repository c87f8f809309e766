// The name of the operation that the calling thread works for: what steps, errors and the Timeline
// call their transfers after.
#pragma once

namespace openspyre::device {

class OpScope {
 public:
  explicit OpScope(const char* name) noexcept : previous_(current()) { current() = name; }
  ~OpScope() { current() = previous_; }
  OpScope(const OpScope&) = delete;
  OpScope& operator=(const OpScope&) = delete;
  // The innermost scope's name; `name` must outlive its scope.
  static const char*& current() noexcept {
    thread_local const char* name = "aten::copy_";
    return name;
  }

 private:
  const char* previous_;
};

}  // namespace openspyre::device
