// The test frame of the torch-free C++: register with TEST(name) { ... }, assert with CHECK*.
// A failed CHECK ends its test. main() runs all, or those whose name contains argv[1].
#pragma once

#include <cstdio>
#include <cstring>
#include <exception>
#include <sstream>
#include <stdexcept>
#include <string>
#include <vector>

namespace check {

struct Failure : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct Case {
  const char* name;
  void (*body)();
};
inline std::vector<Case>& cases() {
  static std::vector<Case> all;
  return all;
}
struct Register {
  Register(const char* name, void (*body)()) { cases().push_back({name, body}); }
};

template <class A, class B>
void equal(const A& a, const B& b, const char* text, const char* file, int line) {
  if (a == b) return;
  std::ostringstream out;
  out << file << ":" << line << ": " << text << ": " << a << " != " << b;
  throw Failure(out.str());
}

// How often a test of values is repeated. ThreadSanitizer looks for races, which a few rounds show
// as well as many, and makes each many times slower.
constexpr int rounds(int count) {
#ifdef __SANITIZE_THREAD__
  return count < 10 ? 1 : count / 10;
#else
  return count;
#endif
}

inline int run(int argc, char** argv) {
  int passed = 0, failed = 0;
  for (const Case& c : cases()) {
    if (argc > 1 && !std::strstr(c.name, argv[1])) continue;
    try {
      c.body();
      ++passed;
    } catch (const std::exception& e) {
      std::printf("FAILED %s\n  %s\n", c.name, e.what());
      ++failed;
    }
  }
  std::printf("%d passed, %d failed\n", passed, failed);
  return failed || !passed ? 1 : 0;
}

}  // namespace check

#define TEST(name)                                             \
  static void test_##name();                                   \
  static check::Register register_##name(#name, &test_##name); \
  static void test_##name()
#define CHECK(condition)                                                            \
  do {                                                                              \
    if (!(condition))                                                               \
      throw check::Failure(std::string(__FILE__) + ":" + std::to_string(__LINE__) + \
                           ": " #condition);                                        \
  } while (0)
#define CHECK_EQ(a, b) check::equal((a), (b), #a " == " #b, __FILE__, __LINE__)
#define CHECK_THROWS(expression, type)                                              \
  do {                                                                              \
    bool thrown_ = false;                                                           \
    try {                                                                           \
      (void)(expression);                                                           \
    } catch (const type&) {                                                         \
      thrown_ = true;                                                               \
    }                                                                               \
    if (!thrown_)                                                                   \
      throw check::Failure(std::string(__FILE__) + ":" + std::to_string(__LINE__) + \
                           ": " #expression " did not throw " #type);               \
  } while (0)
