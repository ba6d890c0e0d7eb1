// SPDX-License-Identifier: Apache-2.0
// Runs the blocks of a grid, each CUDA thread on a fiber of its own. A fiber runs until it waits or
// ends; then the scheduler picks the next one.
#pragma once
#include <algorithm>
#include <array>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "emulator/fiber.h"
#include "emulator/memory.h"
#include "emulator/place.h"
#include "emulator/sanitizers.h"
#include "emulator/statistics.h"

namespace simt {

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the running thread; the scheduler sets them before it resumes a fiber.
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

inline constexpr unsigned kWarpSize = 32;

struct Thread;
class Block;

// Threads that wait for each other: at a barrier of the block, or lanes at a collective.
struct Meeting {
  const char* name = nullptr;  // the operation, where threads have arrived
  Place place = {};            // of the first that arrived
  unsigned arrived = 0;
  unsigned expected = 0;
  unsigned times = 0;
  std::vector<const Thread*> waiting;  // at a barrier

  // Where the order goes that the race detector must know. Two places take turns: a thread that
  // wakes late must not inherit the order that the next meeting gives.
  void* order() { return &order_[times % 2]; }

 private:
  char order_[2];  // only the addresses matter
};

// Lanes of a warp that meet at a collective: those of `mask`.
struct LaneMeeting : Meeting {
  uint32_t mask = 0;
  uint32_t lanes = 0;  // that have arrived
  std::array<void*, kWarpSize> arguments;
};

struct Warp {
  uint32_t ready = 0, alive = 0;  // lanes that can go on; lanes that have not ended
  std::vector<std::unique_ptr<LaneMeeting>> meetings;

  LaneMeeting& meeting(uint32_t mask) {
    for (const auto& meeting : meetings) {
      if (meeting->mask == mask) return *meeting;
    }
    meetings.push_back(std::make_unique<LaneMeeting>());
    meetings.back()->mask = mask;
    meetings.back()->expected = __builtin_popcount(mask);
    return *meetings.back();
  }
};

struct Thread {
  Block* block;
  Fiber* fiber;
  dim3 index;
  unsigned warp, lane;
  AsyncCopies copies;
  Statistics::Counters counters;
};

// The running thread.
inline Thread* current = nullptr;

// A kernel did what no GPU allows: says what, and ends the program. Its fibers are not unwound.
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

// A block on the machine: its threads, warps, barriers and shared memory.
class Block {
 public:
  static constexpr int kBarriers = 16;  // barrier 0 is __syncthreads

  Block(unsigned threads, const std::unique_ptr<Fiber>* fibers)
      : threads_(threads), warps((threads + 31) / kWarpSize) {
    for (unsigned i = 0; i < threads; ++i) {
      threads_[i].block = this;
      threads_[i].fiber = fibers[i].get();
      threads_[i].index =
          dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y);
      threads_[i].warp = i / kWarpSize;
      threads_[i].lane = i % kWarpSize;
    }
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  void begin(dim3 block_index, size_t dynamic_bytes) {
    index = block_index;
    running = true;
    alive = threads();
    shared.begin(dynamic_bytes);
    for (unsigned i = 0; i < threads(); ++i) {
      warps[i / kWarpSize].ready |= uint32_t{1} << i % kWarpSize;
      warps[i / kWarpSize].alive |= uint32_t{1} << i % kWarpSize;
    }
  }

  void end() {
    shared.end();
    running = false;
  }

  unsigned threads() const { return threads_.size(); }
  Thread& thread(unsigned warp, unsigned lane) { return threads_[warp * kWarpSize + lane]; }

 private:
  std::vector<Thread> threads_;

 public:
  dim3 index;
  bool running = false;
  unsigned alive = 0;  // threads that have not ended
  std::vector<Warp> warps;
  std::array<Meeting, kBarriers> barriers;
  SharedMemory shared;
};

// Counts an access of the running thread, where statistics are on.
inline void count(const char* operation, Place place, unsigned bytes,
                  std::optional<uint32_t> shared_address, const void* global) {
  if (statistics.on)
    statistics.add(current->counters, current->block, current->warp, place, operation,
                   {current->lane, bytes, shared_address, reinterpret_cast<uintptr_t>(global)});
}

class Grid {
 public:
  Grid(dim3 grid, dim3 block, size_t shared_bytes, unsigned seed, std::function<void()> kernel)
      : kernel_(std::move(kernel)), shared_bytes_(shared_bytes), seed_(seed), random_(seed) {
    constexpr size_t kMaxThreads = 1024;
    current = nullptr;
    gridDim = grid;
    blockDim = block;
    blockIdx = dim3(0, 0, 0);
    const size_t threads = count(block), blocks = count(grid);
    if (threads == 0 || threads > kMaxThreads) fail("%zu threads a block", threads);
    if (shared_bytes > kMaxSharedBytes) fail("%zu bytes of dynamic shared memory", shared_bytes);

    waiting_.resize(blocks);  // the next to run is the last
    std::iota(waiting_.rbegin(), waiting_.rend(), 0);
    if (seed == 1) std::reverse(waiting_.begin(), waiting_.end());
    if (seed > 1) std::shuffle(waiting_.begin(), waiting_.end(), random_);

    size_t resident = 1;
    if (seed > 1) resident = std::min(kResidentThreads / threads, blocks);
    while (fibers_.size() < resident * threads)
      fibers_.push_back(std::make_unique<Fiber>(&Grid::fiber_main));
    for (size_t i = 0; i < resident; ++i)
      blocks_.push_back(std::make_unique<Block>(threads, &fibers_[i * threads]));
  }

  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  void run() {
    Fiber scheduler;
    scheduler_ = &scheduler;
    running_ = this;
    sanitizers::release(&grid_starts_);
    {
      const sanitizers::Unwatched unwatched;
      while (begin_blocks()) {
        if (!take_turns()) report_deadlock();
        end_blocks();
      }
    }
    sanitizers::acquire(&grid_ends_);
    running_ = nullptr;
  }

  // Leaves the running thread until something makes it ready again. Call it unwatched.
  [[gnu::always_inline]] static void wait() {
    Thread* const self = current;
    self->block->warps[self->warp].ready &= ~(uint32_t{1} << self->lane);
    Fiber::switch_to(*self->fiber, *scheduler_);
  }

 private:
  // What runs at once under a shuffled schedule: one multiprocessor's worth of threads.
  static constexpr size_t kResidentThreads = 2048;
  static constexpr size_t kMaxSharedBytes = 227 << 10;  // sm_90

  static size_t count(dim3 size) { return size_t{size.x} * size.y * size.z; }

  // A fiber runs one thread after the other, of this grid and of later ones.
  static void fiber_main() {
    {
      const sanitizers::Unwatched unwatched;
      current->fiber->began_from(*scheduler_);
    }
    for (;;) {
      Grid* grid;
      {
        const sanitizers::Unwatched unwatched;
        grid = running_;
      }
      sanitizers::acquire(&grid->grid_starts_);
      grid->kernel_();
      sanitizers::release(&grid->grid_ends_);
      end_thread();
    }
  }

  static void end_thread() {
    const sanitizers::Unwatched unwatched;
    Thread& self = *current;
    if (self.copies.in_flight()) fail("a thread ends with asynchronous copies in flight");
    self.copies.forget_groups();
    self.counters.clear();
    self.block->warps[self.warp].alive &= ~(uint32_t{1} << self.lane);
    --self.block->alive;
    wait();
  }

  // Puts waiting blocks where there is room; false when all have run.
  bool begin_blocks() {
    bool any = false;
    for (const auto& block : blocks_) {
      if (!block->running && !waiting_.empty()) {
        const uint64_t i = waiting_.back();
        waiting_.pop_back();
        block->begin(dim3(i % gridDim.x, i / gridDim.x % gridDim.y, i / gridDim.x / gridDim.y),
                     shared_bytes_);
      }
      any = any || block->running;
    }
    return any;
  }

  void end_blocks() {
    for (const auto& block : blocks_) {
      if (!block->running || block->alive) continue;
      if (statistics.on) statistics.end_block(block.get());
      block->end();
    }
  }

  // One turn of every warp that can go on, until a block has ended; false if nothing can go on.
  bool take_turns() {
    std::vector<std::pair<Block*, unsigned>> turns;
    for (const auto& block : blocks_) {
      if (!block->running) continue;
      for (unsigned warp = 0; warp < block->warps.size(); ++warp)
        turns.emplace_back(block.get(), warp);
    }
    if (seed_ == 1) std::reverse(turns.begin(), turns.end());
    for (bool any = true; any;) {
      any = false;
      if (seed_ > 1) std::shuffle(turns.begin(), turns.end(), random_);
      for (const auto& [block, warp] : turns) {
        any = any || block->warps[warp].ready;
        run_warp(*block, warp);
      }
      for (const auto& [block, warp] : turns) {
        if (!block->alive) return true;
      }
    }
    return false;
  }

  // Seed 0: the lowest ready lane first, for as long as there is one. Seed 1: the highest. Others:
  // one turn of every ready lane, in an order of its own each time.
  void run_warp(Block& block, unsigned warp) {
    const uint32_t& ready = block.warps[warp].ready;
    if (seed_ > 1) {
      const unsigned bits = random_(), step = bits >> 8 | 1, first = bits, flip = bits >> 16;
      for (unsigned i = 0; i < kWarpSize; ++i) {
        const unsigned lane = ((i * step + first) ^ flip) % kWarpSize;
        if (ready >> lane & 1) run_thread(block, block.thread(warp, lane));
      }
    } else {
      while (ready) {
        const unsigned lane = seed_ == 0 ? __builtin_ctz(ready) : 31 - __builtin_clz(ready);
        run_thread(block, block.thread(warp, lane));
      }
    }
  }

  void run_thread(Block& block, Thread& thread) {
    current = &thread;
    threadIdx = thread.index;
    blockIdx = block.index;
    Fiber::switch_to(*scheduler_, *thread.fiber);
    current = nullptr;
  }

  [[noreturn]] void report_deadlock() {
    std::string message = "deadlock";
    const auto say = [&](const std::string& part) { message += "\n  " + part; };
    for (const auto& block : blocks_) {
      if (!block->running) continue;
      blockIdx = block->index;
      for (const Meeting& barrier : block->barriers) {
        if (barrier.arrived) say(describe(barrier, "threads"));
      }
      for (unsigned warp = 0; warp < block->warps.size(); ++warp) {
        for (const auto& meeting : block->warps[warp].meetings) {
          if (!meeting->arrived) continue;
          const uint32_t absent = meeting->mask & ~meeting->lanes;
          const uint32_t ended = absent & ~block->warps[warp].alive;
          say(describe(*meeting, "lanes") + "; absent of warp " + std::to_string(warp) +
              ": lanes " + list(absent) + (ended ? " (ended: " + list(ended) + ")" : ""));
        }
      }
      const unsigned ended = block->threads() - block->alive;
      if (ended)
        say(std::to_string(ended) + " of " + std::to_string(block->threads()) +
            " threads have ended");
      break;
    }
    fail("%s", message.c_str());
  }

  static std::string describe(const Meeting& meeting, const char* who) {
    return std::to_string(meeting.arrived) + " of " + std::to_string(meeting.expected) + " " + who +
           " wait at " + meeting.name + " (" + meeting.place.file_name() + ":" +
           std::to_string(meeting.place.line) + ")";
  }

  static std::string list(uint32_t lanes) {
    std::string text;
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      if (lanes >> lane & 1) text += (text.empty() ? "" : ", ") + std::to_string(lane);
    }
    return text;
  }

  static inline std::vector<std::unique_ptr<Fiber>> fibers_;  // of all grids: made once, used again
  static inline Grid* running_ = nullptr;
  static inline Fiber* scheduler_ = nullptr;

  const std::function<void()> kernel_;
  const size_t shared_bytes_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<uint64_t> waiting_;

  const unsigned seed_;
  std::mt19937 random_;

  char grid_starts_, grid_ends_;  // only their addresses matter
};

// Runs `kernel` once for every thread of the grid: launch(grid, block, seed, [&] { kernel(...); }),
// with that much dynamic shared memory for each block.
// The seed chooses the order of threads, warps and blocks: 0 rising, 1 falling, both one block
// after the other; others shuffled, with as many blocks at once as a multiprocessor has threads
// for.
inline void launch(dim3 grid, dim3 block, size_t shared_bytes, unsigned seed,
                   std::function<void()> kernel) {
  Grid(grid, block, shared_bytes, seed, std::move(kernel)).run();
}
inline void launch(dim3 grid, dim3 block, unsigned seed, std::function<void()> kernel) {
  launch(grid, block, 0, seed, std::move(kernel));
}

}  // namespace simt
