// Memory of a device: information, statistics, cache, history switch, tokens, program blocks.
#include <array>
#include <memory>

#include "card/memory.h"
#include "torch/bind.h"

namespace openspyre::device {

namespace {

using card::Block;
using card::DeviceMemory;

DeviceMemory& memory_of(int device) { return *card::Runtime::get().device(device).memory; }

py::dict info(int device) {
  card::MemoryInfo i;
  {
    WithoutGil released;
    i = memory_of(device).info();
  }
  py::dict out;
  out["free"] = i.free;
  out["total"] = i.total;
  out["largest_free_block"] = i.largest_free_block;
  out["reserved"] = i.reserved;
  out["handles_used"] = i.handles_used;
  out["handles_max"] = i.handles_max;
  out["fragmentation"] = i.fragmentation;
  return out;
}

void put_stat(py::dict& out, const std::string& name, const card::Stat& stat) {
  out[py::str(name + ".current")] = stat.current;
  out[py::str(name + ".peak")] = stat.peak;
  out[py::str(name + ".allocated")] = stat.allocated;
  out[py::str(name + ".freed")] = stat.freed;
}

// Flat names, as torch.cuda.memory_stats has them.
py::dict stats(int device) {
  card::MemoryStats s;
  {
    WithoutGil released;
    s = memory_of(device).stats();
  }
  py::dict out;
  constexpr std::array<const char*, card::kStatPools> pools{"all", "small_pool", "large_pool"};
  const auto put = [&](const char* name, const std::array<card::Stat, card::kStatPools>& values) {
    for (size_t pool = 0; pool < values.size(); ++pool) {
      put_stat(out, std::string(name) + "." + pools[pool], values[pool]);
    }
  };
  put("allocation", s.allocation);
  put("segment", s.segment);
  put("active", s.active);
  put("inactive_split", s.inactive_split);
  put("allocated_bytes", s.allocated_bytes);
  put("reserved_bytes", s.reserved_bytes);
  put("active_bytes", s.active_bytes);
  put("inactive_split_bytes", s.inactive_split_bytes);
  put("requested_bytes", s.requested_bytes);
  put_stat(out, "program_bytes", s.program_bytes);
  put_stat(out, "program_allocation", s.program_allocation);
  out["num_alloc_retries"] = s.num_alloc_retries;
  out["num_ooms"] = s.num_ooms;
  out["num_sync_all_streams"] = s.num_sync_all_streams;
  out["num_device_alloc"] = s.num_device_alloc;
  out["num_device_free"] = s.num_device_free;
  return out;
}

// A block that Python owns: program memory, and blocks of tests. Remembers the token and the
// generation, so that a use after free is found by the token table and not by a stale pointer.
class BlockHandle {
 public:
  BlockHandle(int device, uint64_t bytes, int stream, card::MemoryType type)
      : BlockHandle(device, memory_of(device).allocate(bytes, bytes, stream, type)) {}
  BlockHandle(int device, Block* block)
      : device_(device), copy_(*block), token_(block->token), generation_(block->generation) {}
  BlockHandle(const BlockHandle&) = delete;
  BlockHandle& operator=(const BlockHandle&) = delete;
  ~BlockHandle() {
    if (freed_) return;
    try {
      free(device_);
    } catch (const std::exception&) {
      // A handle that outlives its device: nothing is left to give back.
    }
  }
  // Frees through `device`, which has to be the block's own.
  void free(int device) {
    DeviceMemory& memory = memory_of(device);
    memory.free(card::TokenSpace::get().checked(token_, generation_));
    freed_ = true;
  }
  void record_use(int stream) {
    memory_of(device_).record_use(card::TokenSpace::get().checked(token_, generation_), stream);
  }
  const Block& block() const { return copy_; }
  int device() const { return device_; }

 private:
  int device_;
  Block copy_;
  void* token_;
  uint32_t generation_;
  bool freed_ = false;
};

py::object find_token(uint64_t address) {
  const Block* block = card::TokenSpace::get().find(reinterpret_cast<const void*>(address));
  if (block == nullptr) return py::none();
  py::dict out;
  out["device"] = block->device;
  out["region"] = block->region;
  out["offset"] = block->offset;
  out["size"] = block->size;
  out["requested"] = block->requested;
  out["generation"] = block->generation;
  out["token"] = reinterpret_cast<uint64_t>(block->token);
  out["token_span"] = block->token_span;
  out["stream"] = block->stream;
  out["type"] = memory_type_name(block->type);
  return out;
}

}  // namespace

void bind_memory(py::module_& m) {
  m.def("memory_info", &info, py::arg("device"));
  m.def("memory_stats", &stats, py::arg("device"));
  m.def("empty_cache", [](int device) {
    WithoutGil released;
    memory_of(device).empty_cache();
  });
  m.def("poll_pending_frees", [](int device) {
    WithoutGil released;
    memory_of(device).poll_pending_frees();
  });
  m.def("reset_peak_stats", [](int device) { memory_of(device).reset_peak_stats(); });
  m.def("reset_accumulated_stats", [](int device) { memory_of(device).reset_accumulated_stats(); });
  m.def("record_memory_history", [](int device, bool enabled, size_t max_entries) {
    memory_of(device).record_history(enabled, max_entries);
  });
  m.def("check_memory", [](int device) {
    WithoutGil released;
    memory_of(device).check_invariants();
  });
  m.def("live_blocks", [](int device) { return memory_of(device).live_blocks(); });
  m.def("dmva", &card::dmva, py::arg("segment"), py::arg("offset"));
  m.def("split_dmva", [](uint64_t address) {
    const card::SegmentOffset parts = card::split_dmva(address);
    return py::make_tuple(parts.segment, parts.offset);
  });
  m.def("round_up_block", &card::round_up_block, py::arg("bytes"));
  m.def("is_token", [](uint64_t address) {
    return card::TokenSpace::get().contains(reinterpret_cast<const void*>(address));
  });
  m.def("find_token", &find_token, py::arg("address"));

  py::class_<BlockHandle>(m, "Block", "A block of card memory that Python owns.")
      .def(py::init([](int device, uint64_t bytes, int stream, const std::string& type) {
             const card::MemoryType kind = parse_memory_type(type);
             if (bytes == 0) throw py::value_error("a block has at least one byte");
             WithoutGil released;
             return std::make_unique<BlockHandle>(device, bytes, stream, kind);
           }),
           py::arg("device"), py::arg("bytes"), py::arg("stream") = 0, py::arg("type") = "tensor")
      .def(
          "free",
          [](BlockHandle& self, std::optional<int> device) {
            WithoutGil released;
            self.free(device.value_or(self.device()));
          },
          py::arg("device") = py::none(), "Frees the block, through `device` when given.")
      .def("record_use", &BlockHandle::record_use, py::arg("stream"))
      .def_property_readonly("device", &BlockHandle::device)
      .def_property_readonly("region", [](const BlockHandle& b) { return b.block().region; })
      .def_property_readonly("offset", [](const BlockHandle& b) { return b.block().offset; })
      .def_property_readonly("size", [](const BlockHandle& b) { return b.block().size; })
      .def_property_readonly("requested", [](const BlockHandle& b) { return b.block().requested; })
      .def_property_readonly("physical", [](const BlockHandle& b) { return b.block().physical; })
      .def_property_readonly("generation",
                             [](const BlockHandle& b) { return b.block().generation; })
      .def_property_readonly("token", [](const BlockHandle& b) {
        return reinterpret_cast<uint64_t>(b.block().token);
      });
}

}  // namespace openspyre::device
