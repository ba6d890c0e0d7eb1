// SPDX-License-Identifier: Apache-2.0
// The state of wgmma between issue and wait, and the stores to shared memory that are not visible
// yet to wgmma, which reads it through the async proxy.
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "emulator/place.h"
#include "emulator/sanitizers.h"

namespace simt {

// A wgmma in one thread of the warpgroup.
struct Product {
  // Reads the operands of the thread's accumulators, in its name: 2 rows of A, then those of B, 16
  // elements each.
  std::vector<uint16_t> (*read)(const Product&);
  int tokens;
  const float* floats;  // the value of every 16-bit operand
  float* d;
  Place place;
  uint32_t b = 0, slab = 0;  // shared address; bytes of a slab, if B has slabs
  uint32_t a = 0;            // shared address, or
  const uint32_t* registers = nullptr;
  uint32_t given[4] = {};               // content of the registers at issue
  std::vector<uint16_t> rows = {};      // rows of the warp that the thread needs
  std::vector<uint16_t> operands = {};  // result of `read` at issue
  // Adds the product to the thread's accumulators, if not as wgmma.cuh does.
  void (*add)(const Product&, float* sums) = nullptr;
  const uint32_t* metadata = nullptr;  // register of a sparse A, and its content at issue
  uint32_t given_metadata = 0;
};

// The wgmmas of a thread that it has not waited for.
struct Products {
  // Registers at `d` that hold poison until the wait restores these values.
  struct Sums {
    float* d;
    std::vector<float> values;
  };

  bool begun = false;  // after wgmma_begin, before the next commit
  // Oldest first; committed ones by groups.
  std::vector<Product> open;
  std::vector<std::vector<Product>> committed;
  std::vector<Sums> sums;

  bool in_flight() const { return !open.empty() || !committed.empty() || !sums.empty(); }
};

// The latest store to every two bytes of a block's dynamic shared memory. Time counts stores and
// continues from block to block, so that nothing needs to be cleared.
class Stores {
 public:
  struct Store {
    uint64_t time;
    const char* file;
    int line;
    unsigned thread;
  };

  void begin(size_t bytes) {
    if (bytes <= bytes_) return;
    bytes_ = bytes;
    stores_.reset(static_cast<Store*>(std::calloc((bytes + 1) / 2, sizeof(Store))));
    if (!stores_) std::abort();
  }

  SIMT_UNWATCHED void note(uint32_t address, size_t bytes, unsigned thread, Place place) {
    ++now;
    if (address >= bytes_) return;  // a static array, which wgmma cannot read
    Store* const stores = stores_.get();
    for (uint32_t i = address / 2; i < (address + bytes) / 2; ++i)
      stores[i] = {now, place.file, place.line, thread};
  }

  SIMT_UNWATCHED const Store& latest(uint32_t address) const { return stores_.get()[address / 2]; }

  static inline uint64_t now = 0;

 private:
  struct Free {
    void operator()(Store* stores) const { std::free(stores); }
  };
  std::unique_ptr<Store[], Free> stores_;
  size_t bytes_ = 0;
};

}  // namespace simt
