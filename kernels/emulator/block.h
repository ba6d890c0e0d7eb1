// SPDX-License-Identifier: Apache-2.0
// The emulated machine: blocks, their warps and threads, and the barriers at which these wait.
#pragma once
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "emulator/fiber.h"
#include "emulator/last_kernel.h"
#include "emulator/memory.h"
#include "emulator/place.h"
#include "emulator/products.h"
#include "emulator/sanitizers.h"
#include "emulator/statistics.h"

namespace simt {

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the running thread; the scheduler sets them before it resumes a fiber.
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

inline constexpr unsigned kWarpSize = 32, kWarpgroup = 4;  // lanes, warps

struct Thread;
struct Block;

// Threads that wait for each other: at a barrier of the block, or as lanes at a collective.
struct Meeting {
  const char* name = nullptr;  // the operation, once threads have arrived
  Place place = {};            // of the first thread that arrived
  unsigned arrived = 0;
  unsigned expected = 0;

  // The address on which the race detector records the order. Two alternate: a thread that wakes
  // late must not inherit the order of the next meeting.
  void* order() { return &order_[times_ % 2]; }

  void pass() {
    arrived = 0;
    ++times_;
  }

 private:
  unsigned times_ = 0;
  char order_[2];  // only the addresses matter
};

struct Barrier : Meeting {
  std::vector<const Thread*> waiting;
};

// A barrier in shared memory: see common/mbarrier.cuh.
struct Mbarrier {
  unsigned expected = 0, missing = 0;  // arrivals of a phase; those that the current one lacks
  unsigned phases = 0;                 // that have ended
  AsyncCopies copies;                  // that have arrived, but not landed
  int64_t bytes = 0;                   // of copy_bulk that the current phase lacks
  std::vector<Thread*> waiting;
  Place place = {};  // where one of them waits

  // The address for the order of arrivals in a phase of this parity.
  void* order(unsigned parity) { return &order_[parity & 1]; }

 private:
  char order_[2];  // only the addresses matter
};

// Lanes of a warp that meet at a collective: those of `mask`.
struct LaneMeeting : Meeting {
  uint32_t mask = 0;
  uint32_t lanes = 0;  // that have arrived
  void* arguments[kWarpSize];
};

// Four warps, from a multiple of four on, that meet at a collective.
struct WarpgroupMeeting : Meeting {
  uint32_t lanes[kWarpgroup] = {};  // of each warp that have arrived
  void* arguments[kWarpgroup * kWarpSize];
};

struct Warp {
  uint32_t ready = 0, alive = 0;  // lanes that can run; lanes that have not ended
  std::vector<std::unique_ptr<LaneMeeting>> meetings;

  LaneMeeting& meeting(uint32_t mask);
};

struct Thread {
  Block* block;
  Fiber* fiber;
  dim3 index;
  unsigned warp, lane;
  AsyncCopies copies;
  Products products;
  // The stores of this thread that wgmma sees: those before `visible`, which becomes `fenced` at a
  // barrier.
  uint64_t fenced, visible;
  Statistics::Counters counters;
};

// The running thread.
inline Thread* current = nullptr;

// The kernel did what no GPU allows: prints a message and ends the program. Fibers are not unwound.
template <class... Args>
[[noreturn]] void fail(const char* format, Args... args) {
  const sanitizers::Unwatched unwatched;
  std::fprintf(stderr, "simt emulator: block (%u, %u, %u)", blockIdx.x, blockIdx.y, blockIdx.z);
  if (current) std::fprintf(stderr, ", thread (%u, %u, %u)", threadIdx.x, threadIdx.y, threadIdx.z);
  std::fputs(": ", stderr);
  if constexpr (sizeof...(Args) == 0)
    std::fputs(format, stderr);
  else
    std::fprintf(stderr, format, args...);
  std::fputc('\n', stderr);
  std::fflush(nullptr);
  std::_Exit(3);
}

// A block on the machine, or a free slot for one.
struct Block {
  static constexpr int kBarriers = 16;  // barrier 0 is __syncthreads

  std::vector<Thread> threads;
  std::vector<Warp> warps;
  std::vector<WarpgroupMeeting> warpgroups;
  std::array<Barrier, kBarriers> barriers;
  SharedMemory shared;
  std::map<uint32_t, Mbarrier> mbarriers;  // by address
  std::vector<Block*> cluster;             // the blocks that see each other's shared memory
  Barrier cluster_barrier;                 // used in the first block of the cluster
  dim3 index;
  bool running = false;
  bool last_kernel_ended = false;  // as far as the block knows
  unsigned alive = 0;              // threads that have not ended

  Block(unsigned count, const std::unique_ptr<Fiber>* fibers);
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void begin(dim3 block_index, size_t dynamic_bytes);
  void end();

  SIMT_UNWATCHED Thread& thread(unsigned warp, unsigned lane) {
    return threads.data()[warp * kWarpSize + lane];
  }
};

// Records a store of the running thread to shared memory.
void note_store(uint32_t address, size_t bytes, Place place);

// Counts an access of the running thread, if statistics are on. Rejects accesses to global memory
// that the preceding kernel may still use.
void count(const char* operation, Place place, unsigned bytes,
           std::optional<uint32_t> shared_address, const void* global);

}  // namespace simt
