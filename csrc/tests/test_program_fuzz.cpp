// Mutated images: decoded, and what survives is executed. Nothing may crash or leave its memory,
// which the sanitizer builds watch: operands and LX are blocks of their own.
//
//   OPENSPYRE_FUZZ=1000000   so many mutations instead of 20,000
//   OPENSPYRE_FUZZ_FROM=n    begins at mutation n
//   OPENSPYRE_FUZZ_TRACE=1   prints the number of each before it runs: they are deterministic
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "check.h"
#include "machine/program/execute.h"
#include "program_images.h"

using namespace images;
using namespace openspyre::machine;

namespace {

constexpr uint64_t kOperandBytes = 24 << 10;

std::vector<Bytes> corpus() {
  std::vector<std::filesystem::path> files;
  const auto here = std::filesystem::path(__FILE__).parent_path();
  for (const auto& entry : std::filesystem::directory_iterator(here / "corpus")) {
    if (entry.path().extension() == ".bin") files.push_back(entry.path());
  }
  std::sort(files.begin(), files.end());
  std::vector<Bytes> images;
  for (const auto& file : files) {
    std::ifstream stream(file, std::ios::binary);
    images.emplace_back(std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>());
  }
  return images;
}

// A mutated program may let two cores write one operand: no verifier saw it. That is a race in the
// program, which ThreadSanitizer would take for one in the machine.
#ifdef __SANITIZE_THREAD__
constexpr int kThreads = 1;
#else
constexpr int kThreads = 2;
#endif

int64_t number(const char* name, int64_t otherwise) {
  const char* text = std::getenv(name);
  return text == nullptr ? otherwise : std::atoll(text);
}

class Mutator {
 public:
  Mutator(uint64_t seed, const std::vector<Bytes>& corpus) : random_(seed), corpus_(corpus) {}

  Bytes make() {
    Bytes image = corpus_[below(corpus_.size())];
    const auto body = get<uint64_t>(image, 24), bytes = get<uint64_t>(image, 32);
    Bytes text = image.substr(body, bytes);
    for (uint64_t n = below(3) ? 1 : 2 + below(2); n > 0; --n) mutate(&text);
    // The body again, in whole lines of 128, and the header to match.
    const Bytes data = image.substr(get<uint64_t>(image, 40), get<uint64_t>(image, 48));
    image.resize(body);
    put(&image, 32, uint64_t(text.size()));
    image += text;
    image.resize((image.size() + 127) / 128 * 128);
    put(&image, 40, uint64_t(image.size()));
    image += data;
    image.resize((image.size() + 127) / 128 * 128);
    put(&image, 56, uint64_t(image.size()));
    if (below(32) == 0) {  // the header too
      const size_t at = 8 * below(10);
      put(&image, at, below(2) ? get<uint64_t>(image, at) + (below(3) - 1) * 128 : random_());
    }
    if (below(32) == 0) image.resize(below(image.size()));
    mend(&image);
    return image;
  }

 private:
  uint64_t below(uint64_t n) { return random_() % n; }

  void mutate(Bytes* text) {
    if (text->empty()) return;
    const size_t at = below(text->size());
    char& byte = (*text)[at];
    switch (below(12)) {
      case 0:
        byte = static_cast<char>(random_());
        break;
      case 1:
        byte = static_cast<char>(byte ^ 1 << below(8));
        break;
      case 2:
      case 8:
      case 9:
        byte = static_cast<char>(byte + 1);
        break;
      case 3:
      case 10:
      case 11:
        byte = static_cast<char>(byte - 1);
        break;
      case 4: {  // a number of any size
        const uint64_t value = random_() >> below(64);
        text->replace(at, 1, u(value));
        break;
      }
      case 5:
        text->erase(at, 1 + below(4));
        break;
      case 6: {  // a piece of it again, somewhere else
        const Bytes piece = text->substr(at, 1 + below(64));
        text->insert(below(text->size() + 1), piece);
        break;
      }
      default: {
        const Bytes& other = corpus_[below(corpus_.size())];
        const size_t from = 256 + below(other.size() - 256);
        text->replace(at, std::min<size_t>(8, text->size() - at), other.substr(from, 8));
        break;
      }
    }
  }

  std::mt19937_64 random_;
  const std::vector<Bytes>& corpus_;
};

int64_t symbol_value(const Symbol& symbol) {
  const int64_t step = std::max<int64_t>(symbol.granularity, 1);
  int64_t value = std::clamp<int64_t>(48, symbol.minimum, std::max(symbol.minimum, symbol.maximum));
  if (symbol.kind == SymbolKind::Dimension && value < INT64_MAX - step) {
    value = (value + step - 1) / step * step;
  }
  return value;
}

}  // namespace

TEST(program_fuzz_mutated_images_do_no_harm) {
  const std::vector<Bytes> images = corpus();
  CHECK(images.size() >= 20);
  for (const Bytes& image : images) decode_program(image.data(), image.size());

  std::vector<std::vector<std::byte>> memory;
  const int64_t first = number("OPENSPYRE_FUZZ_FROM", 0);
  const int64_t end = first + number("OPENSPYRE_FUZZ", 20'000);
  const bool trace = number("OPENSPYRE_FUZZ_TRACE", 0) != 0;
  int64_t decoded = 0, finished = 0, faults[6] = {};
  for (int64_t i = first; i < end; ++i) {
    if (trace) {
      std::printf("mutation %lld\n", static_cast<long long>(i));
      std::fflush(stdout);
    }
    const Bytes image = Mutator(static_cast<uint64_t>(i), images).make();
    // A copy of just its size, so that a read beyond it is seen.
    const std::vector<char> exact(image.begin(), image.end());
    std::shared_ptr<const Program> program;
    try {
      program = decode_program(exact.data(), exact.size());
    } catch (const FormatError&) {
      continue;
    }
    ++decoded;
    std::vector<Window> windows;
    std::vector<int64_t> symbols;
    while (memory.size() < program->operands.size()) memory.emplace_back(kOperandBytes);
    for (size_t j = 0; j < program->operands.size(); ++j) {
      windows.push_back({memory[j].data(), memory[j].size()});
    }
    for (const Symbol& symbol : program->symbols) symbols.push_back(symbol_value(symbol));
    Launch launch;
    launch.operands = windows;
    launch.symbols = symbols;
    launch.threads = kThreads > 1 && i % 8 == 0 ? kThreads : 1;
    launch.max_tasks = 400;
    try {
      execute_program(*program, launch);
      ++finished;
    } catch (const LaunchFault& fault) {
      ++faults[static_cast<int>(fault.kind)];
    }
  }
  std::printf(
      "fuzz: %lld decoded, %lld finished; faults: %lld address, %lld index, %lld deadlock, "
      "%lld number, %lld unpatched, %lld stopped\n",
      static_cast<long long>(decoded), static_cast<long long>(finished),
      static_cast<long long>(faults[0]), static_cast<long long>(faults[1]),
      static_cast<long long>(faults[2]), static_cast<long long>(faults[3]),
      static_cast<long long>(faults[4]), static_cast<long long>(faults[5]));
  CHECK(decoded > 0 && finished > 0);
}
