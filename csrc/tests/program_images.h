// Writes program images for the tests: the encoder half of docs/program.md section 6, by hand.
//
// Pieces are byte strings in the body's encoding; Image puts them together. Indices are positions:
// labels of an instruction, operands then buffers (place) or values (value), variables as the page
// counts them.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "machine/program/program.h"

namespace images {

using Bytes = std::string;
using openspyre::machine::Format;

inline Bytes u(uint64_t value) {
  Bytes out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
inline Bytes s(int64_t value) {
  return u(static_cast<uint64_t>(value) << 1 ^ static_cast<uint64_t>(value >> 63));
}
inline Bytes str(const std::string& text) { return u(text.size()) + text; }
inline Bytes list(const std::vector<Bytes>& items) {
  Bytes out = u(items.size());
  for (const Bytes& item : items) out += item;
  return out;
}

// --- expressions
inline Bytes c(int64_t value) { return u(0) + s(value); }
inline Bytes v(uint64_t variable) { return u(1) + u(variable); }
enum Operator { Plus, Minus, Times, Over, Modulo, Least, Most, Same, Less, AtMost };
inline Bytes op(Operator code, const Bytes& a, const Bytes& b) { return u(2 + code) + a + b; }

// --- instructions
inline Bytes label(const std::string& name, const Bytes& start, const Bytes& size) {
  return str(name) + start + size;
}
struct Tile {
  uint64_t value, place;
  Format format;
  std::vector<std::pair<int, Bytes>> strides;
  int stick = -1;
  Bytes offset = c(0), slot = c(0);
  std::vector<int> index = {};  // a label for each dim, or -1; empty: as many dims as strides
  bool lanes = false;
};
inline Bytes access(const Tile& t) {
  Bytes index = u(t.index.empty() ? t.strides.size() : t.index.size()),
        strides = u(t.strides.size());
  for (size_t i = 0; i < (t.index.empty() ? t.strides.size() : t.index.size()); ++i) {
    const int at = t.index.empty() ? t.strides[i].first : t.index[i];
    index += u(static_cast<uint64_t>(at + 1)) + c(0);
  }
  for (const auto& [at, bytes] : t.strides) strides += u(static_cast<uint64_t>(at)) + bytes;
  return u(t.value) + index + u(t.place) + u(static_cast<uint64_t>(t.format)) + strides +
         u(static_cast<uint64_t>(t.stick + 1)) + t.offset + t.slot + u(t.lanes);
}
inline Bytes load(const std::vector<Bytes>& over, const Tile& from, const Tile& to,
                  const Bytes& gather = u(0)) {
  return u(0) + list(over) + access(from) + access(to) + u(0) + gather;
}
inline Bytes store(const std::vector<Bytes>& over, const Tile& from, const Tile& to,
                   const Bytes& scatter = u(0)) {
  return u(1) + list(over) + access(from) + access(to) + scatter;
}
inline Bytes gather(int at, const Tile& index, const Bytes& limit) {
  return u(1) + u(static_cast<uint64_t>(at)) + access(index) + limit;
}
inline Bytes scatter(int at, const Tile& index, const Bytes& limit, const Bytes& first,
                     const Bytes& count, bool add) {
  return gather(at, index, limit) + first + count + u(add);
}
inline Bytes ring(const Bytes& count, const Bytes& core, const std::vector<Bytes>& over,
                  const Tile& from, const Tile& to, int combine = -1) {
  return u(2) + str("r") + count + core + list(over) + access(from) + access(to) +
         u(static_cast<uint64_t>(combine + 1));
}
// A map whose one output is its one input, of a float format.
inline Bytes copy_map(const std::vector<Bytes>& over, const Tile& from, const Tile& to) {
  const Bytes body = u(1) + list({u(0) + u(0) + u(0)}) + list({u(0)});
  return u(3) + u(4) + u(1) + list(over) + list({access(from)}) + list({access(to)}) + body + u(0) +
         c(0) + u(0) + c(0) + u(0);
}
inline Bytes wait(uint64_t token, const Bytes& index = c(0), const Bytes& count = c(1)) {
  return u(4) + u(token) + index + count;
}
inline Bytes signal(uint64_t token, const Bytes& index = c(0), const Bytes& count = c(1)) {
  return u(5) + u(token) + index + count + u(0);
}
inline Bytes signal_core(uint64_t token, const Bytes& index, const Bytes& core) {
  return u(5) + u(token) + index + c(1) + u(1) + core;
}
inline Bytes loop(const Bytes& count, const std::vector<Bytes>& body) {
  return u(6) + u(1) + str("i") + count + list(body);
}

inline uint32_t crc(const Bytes& data) {
  uint32_t crc = ~0U;
  for (const char byte : data) {
    crc ^= static_cast<uint8_t>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ (crc & 1 ? 0xEDB88320U : 0);
  }
  return ~crc;
}

template <class T>
void put(Bytes* out, size_t offset, T value) {
  std::memcpy(out->data() + offset, &value, sizeof value);
}
template <class T>
T get(const Bytes& image, size_t offset) {
  T value;
  std::memcpy(&value, image.data() + offset, sizeof value);
  return value;
}

// Makes the two CRCs of an image right again, as far as its header allows.
inline void mend(Bytes* image) {
  if (image->size() < 128) return;
  const auto body = get<uint64_t>(*image, 24), all = get<uint64_t>(*image, 56);
  if (body <= all && all <= image->size()) put(image, 64, crc(image->substr(body, all - body)));
  put(image, 68, crc(image->substr(0, 68) + image->substr(72, 8)));
}

struct Image {
  uint64_t cores = 1, lx = 16384;
  std::vector<Bytes> digits, symbols, operands, values, buffers, tokens, lets, queues[5];
  Bytes names;  // of the symbol words, for the checksum
  uint32_t words = 0;
  Bytes data;

  // Roles as in the enumeration. Shapes are of constants. Gives its number.
  uint64_t operand(const std::string& name, int role, Format format, std::vector<int64_t> shape,
                   uint64_t offset = 0) {
    Bytes sizes = u(shape.size());
    for (const int64_t size : shape) sizes += c(size);
    operands.push_back(str(name) + u(static_cast<uint64_t>(role)) + str("float32") +
                       u(static_cast<uint64_t>(format)) + sizes + u(0) + u(0) + u(offset));
    if (role < 3) {
      names += "address " + name + "\n";
      ++words;
    }
    return operands.size() - 1;
  }
  void buffer(uint64_t base, uint64_t slot_bytes, uint64_t slots) {
    buffers.push_back(str("b" + std::to_string(buffers.size())) + u(base) + u(slot_bytes) +
                      u(slots));
  }
  uint64_t token(uint64_t count, uint64_t initial = 0) {
    tokens.push_back(str("t" + std::to_string(tokens.size())) + u(count) + u(initial));
    return tokens.size() - 1;
  }

  Bytes bytes() const {
    Bytes body = str("test") + str("spyre") + u(cores) + u(lx) + list(digits) + list(symbols) +
                 list(operands) + list(values) + list(buffers) + list(tokens) + list(lets);
    for (const auto& queue : queues) body += list(queue);
    const auto round = [](size_t n) { return (n + 127) / 128 * 128; };
    Bytes image(128, '\0');
    std::memcpy(image.data(), "OSPYRE\x1a\n", 8);
    put(&image, 8, openspyre::machine::kProgramVersion);
    put(&image, 12, words);
    put(&image, 16, uint64_t(128));
    image.resize(round(128 + 8 * words));
    put(&image, 24, uint64_t(image.size()));
    put(&image, 32, uint64_t(body.size()));
    image += body;
    image.resize(round(image.size()));
    put(&image, 40, uint64_t(image.size()));
    put(&image, 48, uint64_t(data.size()));
    image += data;
    image.resize(round(image.size()));
    put(&image, 56, uint64_t(image.size()));
    uint64_t hash = 0xCBF29CE484222325ULL;
    for (const char byte : names) hash = (hash ^ static_cast<uint8_t>(byte)) * 0x100000001B3ULL;
    put(&image, 72, hash);
    mend(&image);
    return image;
  }
};

}  // namespace images
