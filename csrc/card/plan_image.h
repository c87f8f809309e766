// Program images on the card: shared by plans of equal content, evicted under memory pressure and
// loaded again at the next launch.
//
// Torch-free. An image is the static allocation of a plan (segment 7) with the bytes that its
// InitTransfers put there; the host keeps those bytes, so that coming back costs one transfer.
#pragma once

#include <atomic>
#include <bitset>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "card/runtime.h"

namespace openspyre::card {

inline constexpr int kMaxStreams = 128;  // above every stream id

struct ImageInit {
  uint64_t dev_ptr = 0;  // DMVA in segment 7
  std::shared_ptr<const std::vector<std::byte>> data;
};

struct ImageInfo {
  std::string hash;
  uint64_t bytes;
  bool resident;
  int64_t plans, loads, evictions;
};

class Image {
 public:
  // The image of that content on that device: the one there is, or a new one, not loaded yet.
  static std::shared_ptr<Image> of(Device& device, const std::string& hash, uint64_t bytes,
                                   const std::vector<ImageInit>& inits);
  ~Image();

  // Keeps the image on the card while it lives.
  class Pin {
   public:
    explicit Pin(Image* image) : image_(image) {}
    Pin(Pin&& other) noexcept : image_(std::exchange(other.image_, nullptr)) {}
    Pin(const Pin&) = delete;
    Pin& operator=(const Pin&) = delete;
    Pin& operator=(Pin&&) = delete;
    ~Pin();

   private:
    Image* image_;
  };
  // Loads the image if it is not there and orders `stream` behind its load. `block` gets its block.
  // Work submitted to `stream` while the pin lives may use it. Throws OutOfMemory, StreamFailure.
  Pin pin(StreamId stream, const Block** block);

  bool resident() const;
  ImageInfo info() const;

 private:
  friend class Images;
  struct Loaded {
    std::atomic<bool> done{false};
  };
  Image(Device& device, std::string hash, uint64_t bytes, std::vector<ImageInit> inits)
      : device_(device), hash_(std::move(hash)), bytes_(bytes), inits_(std::move(inits)) {}
  void load(StreamId stream);  // needs the lock
  void drop();                 // needs the lock
  void unpin();
  bool try_evict();

  Device& device_;
  const std::string hash_;
  const uint64_t bytes_;
  const std::vector<ImageInit> inits_;
  mutable std::mutex mutex_;
  Block* block_ = nullptr;
  EventPtr ready_;
  std::shared_ptr<Loaded> loaded_;
  std::bitset<kMaxStreams> ordered_;  // streams that run behind the load
  int pins_ = 0;
  int64_t loads_ = 0, evictions_ = 0;
  std::atomic<uint64_t> last_use_{0};
};

// All images of the process.
class Images {
 public:
  static Images& get();  // leaked on purpose
  // Frees the least recently used image of the device that nothing pins; true when it freed one.
  // The memory's evict hook: takes no lock that its caller may hold.
  bool evict(Device& device);
  // Evicts until the device's images hold at most `budget` bytes; 0: no limit.
  void keep_within(Device& device, uint64_t budget);
  std::vector<ImageInfo> list(const Device& device) const;

 private:
  friend class Image;
  std::vector<std::shared_ptr<Image>> of_device(const Device& device) const;
  mutable std::mutex mutex_;
  std::map<std::pair<const Device*, std::string>, std::weak_ptr<Image>> images_;
};

}  // namespace openspyre::card
