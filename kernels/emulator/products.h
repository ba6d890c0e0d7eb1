// SPDX-License-Identifier: Apache-2.0
// What wgmma keeps between its issue and the wait, and who has stored to shared memory without
// making it visible to wgmma, which reads it through another path (PTX: the async proxy).
#pragma once
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "emulator/place.h"

namespace simt {

// A wgmma, as one thread of the warpgroup sees it.
struct Product {
  // Reads what the thread's sums need, in its name: 2 rows of A, then those of B, 16 elements each.
  std::vector<uint16_t> (*read)(const Product&);
  int tokens;
  const float* floats;  // the value of every 16-bit operand
  float* d;
  Place place;
  uint32_t b = 0, slab = 0;  // shared address; bytes of a slab, where B has them
  uint32_t a = 0;            // shared address, or else
  const uint32_t* registers = nullptr;
  uint32_t given[4] = {};               // what was in the registers
  std::vector<uint16_t> rows = {};      // that the thread needs of those of the warp
  std::vector<uint16_t> operands = {};  // what `read` gave at the issue
  // Adds the product to the thread's sums, where that is not what wgmma.cuh does.
  void (*add)(const Product&, float* sums) = nullptr;
  const uint32_t* metadata = nullptr;  // register of a sparse A, and what was in it
  uint32_t given_metadata = 0;
};

// The wgmmas of one thread that it has not waited for.
struct Products {
  // Registers at `d` that hold poison until the wait brings these values.
  struct Sums {
    float* d;
    std::vector<float> values;
  };

  bool begun = false;  // a wgmma_begin since the last commit
  // Oldest first; those that are committed by batches.
  std::vector<Product> open;
  std::vector<std::vector<Product>> committed;
  std::vector<Sums> sums;

  bool in_flight() const { return !open.empty() || !committed.empty() || !sums.empty(); }
};

// The latest store to every two bytes of a block's dynamic shared memory. Time is counted in
// stores and goes on from block to block, so that nothing needs to be cleared between them.
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

  void note(uint32_t address, size_t bytes, unsigned thread, Place place) {
    ++now;
    if (address >= bytes_) return;  // a static array, which wgmma cannot read
    for (uint32_t i = address / 2; i < (address + bytes) / 2; ++i)
      stores_[i] = {now, place.file, place.line, thread};
  }

  const Store& latest(uint32_t address) const { return stores_[address / 2]; }

  static inline uint64_t now = 0;

 private:
  struct Free {
    void operator()(Store* stores) const { std::free(stores); }
  };
  std::unique_ptr<Store[], Free> stores_;
  size_t bytes_ = 0;
};

}  // namespace simt
