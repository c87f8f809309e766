// What the plan tests share: a small device, images made by hand, an executor that records.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "card/plan.h"
#include "stream_helpers.h"

namespace plan_test {

using namespace stream_test;
namespace machine = openspyre::machine;

inline constexpr uint64_t kMiB = 1ull << 20;

inline std::unique_ptr<Device> make_device(uint64_t capacity = 64 * kMiB,
                                           uint64_t max_region = 16 * kMiB) {
  auto device = std::make_unique<Device>();
  device->index = 0;
  auto physical = std::make_shared<PhysicalMemory>(128 * kMiB, true);
  MemoryConfig memory;
  memory.capacity = capacity;
  memory.max_region = max_region;
  memory.min_region = 256 << 10;
  device->memory = std::make_unique<DeviceMemory>(0, physical, memory);
  device->streams = std::make_unique<DeviceStreams>(0, make_engine_set(), plain_config());
  DeviceStreams* streams = device->streams.get();
  MemoryHooks hooks;
  hooks.record_marker = [streams](int stream) { return streams->record_marker(stream); };
  hooks.marker_passed = [streams](int stream, uint64_t marker) {
    return streams->marker_passed(stream, marker);
  };
  hooks.evict = [owner = device.get()] { return Images::get().evict(*owner); };
  device->memory->set_hooks(std::move(hooks));
  return device;
}

// Little-endian words of an image; the CRCs are zlib's.
class ImageWriter {
 public:
  void number(uint64_t value) {  // unsigned LEB128
    do {
      uint8_t byte = value & 0x7F;
      value >>= 7;
      body_.push_back(byte | (value ? 0x80 : 0));
    } while (value);
  }
  void text(const std::string& text) {
    number(text.size());
    body_.insert(body_.end(), text.begin(), text.end());
  }
  // A program with `arguments` IN or OUT operands of one float32 stick each and no instructions.
  static std::vector<std::byte> program(const std::string& name, const std::string& roles,
                                        const std::vector<std::string>& numbers = {}) {
    ImageWriter w;
    w.text(name);
    w.text("spyre"), w.number(32), w.number(2 << 20);
    w.number(1), w.text("c"), w.number(1);  // grid
    w.number(numbers.size());
    for (const std::string& symbol : numbers) {
      w.text(symbol), w.number(1);            // int
      w.number(1), w.number(1), w.number(1);  // argument -1, dim -1 (zigzag), granularity 1
      w.number(0), w.number(2000000);         // 0 .. 1000000
    }
    w.number(roles.size());
    for (size_t i = 0; i < roles.size(); ++i) {
      w.text(std::string(1, static_cast<char>('a' + i)));
      w.number(roles[i] == 'o' ? 1 : roles[i] == 'b' ? 2 : 0);
      w.text("float32"), w.number(static_cast<uint64_t>(machine::Format::IEEE_FP32));
      w.number(1), w.number(0), w.number(64);  // shape [32]
      w.number(0), w.number(0), w.number(0);
    }
    for (int i = 0; i < 9; ++i) w.number(0);  // values, buffers, tokens, lets, five queues
    const uint64_t words = roles.size() + numbers.size();
    std::string table;
    for (size_t i = 0; i < roles.size(); ++i)
      table += std::string("address ") + static_cast<char>('a' + i) + "\n";
    for (const std::string& symbol : numbers) table += "int " + symbol + "\n";
    return w.finish(words, checksum(table));
  }
  static uint64_t checksum(const std::string& table) {
    uint64_t hash = 14695981039346656037ull;
    for (const unsigned char c : table) hash = (hash ^ c) * 1099511628211ull;
    return hash;
  }

 private:
  static uint32_t crc(const uint8_t* data, size_t n, uint32_t before = 0) {
    uint32_t c = ~before;
    for (size_t i = 0; i < n; ++i) {
      c ^= data[i];
      for (int k = 0; k < 8; ++k) c = c & 1 ? c >> 1 ^ 0xEDB88320u : c >> 1;
    }
    return ~c;
  }
  std::vector<std::byte> finish(uint64_t words, uint64_t checksum) const {
    const auto up = [](uint64_t n) { return (n + 127) / 128 * 128; };
    const uint64_t body = 128 + up(8 * words), data = body + up(body_.size());
    std::vector<uint8_t> out(data);
    const auto put = [&](size_t at, uint64_t value, int bytes) {
      for (int i = 0; i < bytes; ++i) out[at + static_cast<size_t>(i)] = value >> (8 * i) & 0xFF;
    };
    std::memcpy(out.data(), "OSPYRE\x1a\n", 8);
    put(8, 1, 2), put(12, words, 4), put(16, 128, 8), put(24, body, 8);
    put(32, body_.size(), 8), put(40, data, 8), put(48, 0, 8), put(56, data, 8);
    put(72, checksum, 8);
    std::memcpy(out.data() + body, body_.data(), body_.size());
    for (uint64_t i = 0; i < words; ++i) put(128 + 8 * i, machine::kUnpatched, 8);
    put(64, crc(out.data() + body, data - body), 4);
    std::vector<uint8_t> head(out.begin(), out.begin() + 68);
    head.insert(head.end(), out.begin() + 72, out.begin() + 80);
    put(68, crc(head.data(), head.size()), 4);
    std::vector<std::byte> bytes(out.size());
    std::memcpy(bytes.data(), out.data(), out.size());
    return bytes;
  }
  std::vector<uint8_t> body_;
};

inline constexpr uint64_t kBase = kProgramSegment << kSegmentBits;

// A plan of one program. `correct`: with HostCompute and H2D of its symbol words.
inline PlanSpec plan_of(const std::vector<std::byte>& image, const std::string& roles,
                        const std::vector<std::string>& numbers = {}, bool correct = true,
                        const std::string& hash = "h") {
  PlanSpec spec;
  spec.name = "test";
  spec.hash = hash;
  spec.static_size = image.size();
  spec.inits = {{kBase, std::make_shared<const std::vector<std::byte>>(image)}};
  const uint64_t words = roles.size() + numbers.size();
  if (correct) {
    PlanStep host;
    host.kind = Engine::Host;
    host.name = "host";
    host.cost_ns = 500000;
    host.handle = "blob";
    host.size = 8 * words;
    host.correction.emplace();
    std::string table;
    for (size_t i = 0; i < roles.size(); ++i) {
      host.correction->symbols.push_back(
          {{PlanSymbol::Kind::Address, static_cast<int>(i), -1, ""}, 0, 1});
      table += std::string("address ") + static_cast<char>('a' + i) + "\n";
    }
    for (const std::string& name : numbers) {
      host.correction->symbols.push_back({{PlanSymbol::Kind::Int, -1, -1, name}, 0, 1});
      table += "int " + name + "\n";
    }
    for (size_t i = 0; i < words; ++i)
      host.correction->patches.push_back({8 * i, 8, static_cast<int>(i), 1, 0, 0, ~0ull});
    host.correction->checksum = ImageWriter::checksum(table);
    PlanStep move;
    move.kind = Engine::H2D;
    move.name = "move";
    move.cost_ns = 200000;
    move.handle = "blob";
    move.dev_ptr = kBase + 128;
    move.size = 8 * words;
    spec.steps = {host, move};
  }
  PlanStep compute;
  compute.name = "compute";
  compute.cost_ns = 1000000;
  compute.program_ptr = kBase;
  for (size_t i = 0; i < roles.size(); ++i) compute.args.push_back(static_cast<int>(i));
  spec.steps.push_back(compute);
  return spec;
}

// out = in + number, on one stick of float32: what the tests' programs "compute".
inline machine::ExecutionCounts add_number(const machine::Program&, const machine::Launch& launch) {
  float values[32];
  std::memcpy(values, launch.operands[0].base, sizeof values);
  const auto number = static_cast<float>(launch.symbols.empty() ? 1 : launch.symbols[0]);
  for (float& value : values) value += number;
  std::memcpy(launch.operands[1].base, values, sizeof values);
  return {};
}

struct Stick {  // a tensor of one stick
  Device& device;
  Block* block;
  Stick(Device& on, int stream = 0) : device(on), block(on.memory->allocate(128, 128, stream)) {}
  Stick(const Stick&) = delete;
  ~Stick() { device.memory->free(block); }
  void fill(float value) {
    for (int i = 0; i < 32; ++i) std::memcpy(block->host + 4 * i, &value, 4);
  }
  float get(int i = 0) const {
    float value;
    std::memcpy(&value, block->host + 4 * i, 4);
    return value;
  }
};

inline LaunchRequest request(StreamId stream, const std::vector<const Stick*>& tensors,
                             std::vector<int64_t> symbols = {}) {
  LaunchRequest wanted;
  wanted.stream = stream;
  for (const Stick* tensor : tensors) {
    LaunchArgument argument;
    argument.block = tensor->block;
    argument.footprint = {{0, 128}};
    wanted.arguments.push_back(argument);
  }
  wanted.symbols = std::move(symbols);
  wanted.costs = {0};
  return wanted;
}

}  // namespace plan_test
