// Loading, dropping and finding of program images.

#include "card/plan_image.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

namespace openspyre::card {

namespace {
constexpr int64_t kInlineBytes = 64 << 10;  // small loads run on the caller's thread
std::atomic<uint64_t> g_use{0};
}  // namespace

Images& Images::get() {
  static Images* images = new Images;
  return *images;
}

std::shared_ptr<Image> Image::of(Device& device, const std::string& hash, uint64_t bytes,
                                 const std::vector<ImageInit>& inits) {
  Images& all = Images::get();
  std::shared_ptr<Image> image;  // outlives the lock: its destructor takes it
  {
    std::lock_guard<std::mutex> lock(all.mutex_);
    std::weak_ptr<Image>& known = all.images_[{&device, hash}];
    image = known.lock();
    if (!image) {
      image.reset(new Image(device, hash, bytes, inits));
      known = image;
    }
  }
  if (image->bytes_ != bytes)
    throw std::invalid_argument("two plans of content " + hash + " want images of " +
                                std::to_string(image->bytes_) + " and " + std::to_string(bytes) +
                                " bytes");
  return image;
}

Image::~Image() {
  {
    Images& all = Images::get();
    std::lock_guard<std::mutex> lock(all.mutex_);
    const auto found = all.images_.find({&device_, hash_});
    if (found != all.images_.end() && found->second.expired()) all.images_.erase(found);
  }
  // In a forked child the card is not ours: its locks may be held for ever.
  if (block_ && !Runtime::get().in_forked_child()) drop();
}

Image::Pin::~Pin() {
  if (image_) image_->unpin();
}

void Image::unpin() {
  std::lock_guard<std::mutex> lock(mutex_);
  --pins_;
}

void Image::drop() {
  // Streams that used it were told to the allocator: the place rests until they have passed.
  device_.streams->forget_block(block_->token);
  device_.memory->free(block_);
  block_ = nullptr;
  ready_ = nullptr;
  loaded_ = nullptr;
  ordered_.reset();
}

void Image::load(StreamId stream) {
  block_ = device_.memory->allocate(std::max<uint64_t>(bytes_, 1), std::max<uint64_t>(bytes_, 1),
                                    stream, MemoryType::ProgramStatic);
  try {
    auto loaded = std::make_shared<Loaded>();
    int64_t bytes = 0;
    for (const ImageInit& init : inits_) bytes += static_cast<int64_t>(init.data->size());
    Step step;
    step.engine = Engine::H2D;
    step.name = "program image";
    step.bytes = bytes;
    step.cost_ns = device_.streams->cost().transfer_ns(Engine::H2D, bytes);
    step.may_run_inline = bytes <= kInlineBytes;
    if (device_.streams->tracks_hazards())
      step.accesses = {{block_->token, true, {{0, block_->size}}}};
    std::byte* const base = block_->host;
    step.work = [base, bytes_of_block = block_->size, inits = inits_, loaded] {
      // Whole sticks, as the card writes them. The rest of the allocation is never read, and may be
      // a whole segment: touching it would cost the host as much memory.
      for (const ImageInit& init : inits) {
        if (!base) break;
        const uint64_t begin = init.dev_ptr - dmva(kProgramSegment, 0), size = init.data->size();
        const uint64_t end = std::min(round_up_block(begin + size), bytes_of_block);
        std::memcpy(base + begin, init.data->data(), size);
        std::memset(base + begin + size, 0, end - begin - size);
      }
      loaded->done.store(true, std::memory_order_release);
    };
    EventPtr ready = device_.streams->make_event();
    device_.streams->submit(stream, std::move(step));
    device_.streams->signal(stream, ready);
    ready_ = std::move(ready);
    loaded_ = std::move(loaded);
    ordered_.reset();
    ordered_.set(static_cast<size_t>(stream));
    ++loads_;
  } catch (...) {
    drop();
    throw;
  }
}

Image::Pin Image::pin(StreamId stream, const Block** block) {
  last_use_.store(g_use.fetch_add(1, std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  std::lock_guard<std::mutex> lock(mutex_);
  // A load that failed or was dropped with its stream's queue left nothing: load again.
  if (block_ && DeviceStreams::query(ready_) && !loaded_->done.load(std::memory_order_acquire))
    drop();
  if (!block_) load(stream);
  if (!ordered_.test(static_cast<size_t>(stream))) {
    device_.streams->wait(stream, ready_);
    device_.memory->record_use(block_, stream);
    ordered_.set(static_cast<size_t>(stream));
  }
  ++pins_;
  *block = block_;
  return Pin(this);
}

bool Image::try_evict() {
  std::unique_lock<std::mutex> lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock() || !block_ || pins_ > 0) return false;
  drop();
  ++evictions_;
  return true;
}

bool Image::resident() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return block_ != nullptr;
}

ImageInfo Image::info() const {
  std::lock_guard<std::mutex> lock(mutex_);
  return {hash_, round_up_block(bytes_), block_ != nullptr, 0, loads_, evictions_};
}

std::vector<std::shared_ptr<Image>> Images::of_device(const Device& device) const {
  std::vector<std::shared_ptr<Image>> found;
  std::lock_guard<std::mutex> lock(mutex_);
  for (const auto& [key, weak] : images_)
    if (key.first == &device)
      if (std::shared_ptr<Image> image = weak.lock()) found.push_back(std::move(image));
  return found;
}

bool Images::evict(Device& device) {
  auto images = of_device(device);
  std::sort(images.begin(), images.end(), [](const auto& a, const auto& b) {
    return a->last_use_.load(std::memory_order_relaxed) <
           b->last_use_.load(std::memory_order_relaxed);
  });
  for (const auto& image : images)
    if (image->try_evict()) return true;
  return false;
}

void Images::keep_within(Device& device, uint64_t budget) {
  if (budget == 0) return;
  for (;;) {
    uint64_t held = 0;
    for (const auto& image : of_device(device))
      if (const ImageInfo info = image->info(); info.resident) held += info.bytes;
    if (held <= budget || !evict(device)) return;
  }
}

std::vector<ImageInfo> Images::list(const Device& device) const {
  std::vector<ImageInfo> rows;
  for (const auto& image : of_device(device)) {
    rows.push_back(image->info());
    rows.back().plans = image.use_count() - 1;  // without the list's own
  }
  return rows;
}

}  // namespace openspyre::card
