// Reads the body's stream (docs/program.md section 6) without ever leaving it.
//
// Torch-free. Every failure is a FormatError that names the field and the byte of the image.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>

#include "machine/program/program.h"

namespace openspyre::machine {

class Reader {
 public:
  // `bytes` bytes at `data`, which begin at byte `offset` of the image (for messages).
  Reader(const uint8_t* data, uint64_t bytes, uint64_t offset)
      : begin_(data), at_(data), end_(data + bytes), offset_(offset) {}

  uint64_t left() const { return static_cast<uint64_t>(end_ - at_); }

  [[noreturn]] void fail(const std::string& what) const {
    throw FormatError("program image, byte " +
                      std::to_string(offset_ + static_cast<uint64_t>(at_ - begin_)) + ": " + what);
  }

  uint64_t u(const char* field) {
    uint64_t value = 0;
    for (int shift = 0; shift < 70; shift += 7) {
      if (at_ == end_) fail(std::string(field) + ": the body ends inside it");
      const uint8_t byte = *at_++;
      if (shift == 63 && (byte & 0x7E)) break;
      value |= static_cast<uint64_t>(byte & 0x7F) << shift;
      if (!(byte & 0x80)) return value;
    }
    fail(std::string(field) + ": the number is longer than 64 bits");
  }

  int64_t s(const char* field) {
    const uint64_t zigzag = u(field);
    return static_cast<int64_t>(zigzag >> 1) ^ -static_cast<int64_t>(zigzag & 1);
  }

  // A number below `limit`.
  int code(const char* field, uint64_t limit) {
    const uint64_t value = u(field);
    if (value >= limit) {
      fail(std::string(field) + ": " + std::to_string(value) + " must be below " +
           std::to_string(limit));
    }
    return static_cast<int>(value);
  }

  // The count of a list whose elements take at least `least` bytes each: what follows must be able
  // to hold them, so that no count makes the decoder allocate much.
  uint64_t count(const char* field, uint64_t least, uint64_t most = UINT64_MAX) {
    const uint64_t value = u(field);
    if (value > most) {
      fail(std::string(field) + ": " + std::to_string(value) + " of them; at most " +
           std::to_string(most));
    }
    if (value > left() / least) {
      fail(std::string(field) + ": " + std::to_string(value) + " of them do not fit in the " +
           std::to_string(left()) + " bytes that follow");
    }
    return value;
  }

  bool flag(const char* field) { return code(field, 2) != 0; }

  std::string str(const char* field) {
    const uint64_t length = count(field, 1);
    std::string text(reinterpret_cast<const char*>(at_), length);
    if (!is_utf8(text)) fail(std::string(field) + ": the text is not UTF-8");
    at_ += length;
    return text;
  }

  uint32_t word(const char* field) {
    if (left() < 4) fail(std::string(field) + ": the body ends inside it");
    uint32_t value;
    std::memcpy(&value, at_, 4);
    at_ += 4;
    return value;
  }

 private:
  static bool is_utf8(const std::string& text) {
    const auto* p = reinterpret_cast<const uint8_t*>(text.data());
    const auto* const end = p + text.size();
    while (p != end) {
      const uint8_t lead = *p++;
      if (lead < 0x80) continue;
      const int more = lead >= 0xF0 ? 3 : lead >= 0xE0 ? 2 : 1;
      if (lead < 0xC2 || lead > 0xF4 || end - p < more) return false;
      uint32_t point = lead & (0x3F >> more);
      for (int i = 0; i < more; ++i, ++p) {
        if ((*p & 0xC0) != 0x80) return false;
        point = point << 6 | (*p & 0x3F);
      }
      constexpr uint32_t least[] = {0, 0x80, 0x800, 0x10000};
      if (point < least[more] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF)) {
        return false;
      }
    }
    return true;
  }

  const uint8_t *begin_, *at_, *end_;
  uint64_t offset_;
};

}  // namespace openspyre::machine
