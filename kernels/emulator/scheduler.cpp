// SPDX-License-Identifier: Apache-2.0
#include "emulator/scheduler.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace simt {

namespace {

class Grid {
 public:
  Grid(dim3 grid, dim3 block, size_t shared_bytes, unsigned cluster, unsigned seed,
       std::function<void()> kernel)
      : kernel_(std::move(kernel)),
        shared_bytes_(shared_bytes),
        cluster_(cluster),
        seed_(seed),
        random_(seed) {
    constexpr size_t kMaxThreads = 1024;
    current = nullptr;
    gridDim = grid;
    blockDim = block;
    blockIdx = dim3(0, 0, 0);
    const size_t threads = count(block), blocks = count(grid);
    if (blocks == 0) fail("a grid of no blocks");
    if (threads == 0 || threads > kMaxThreads) fail("%zu threads a block", threads);
    if (shared_bytes > kMaxSharedBytes) fail("%zu bytes of dynamic shared memory", shared_bytes);

    if (cluster == 0 || grid.x % cluster != 0) fail("%u blocks in clusters of %u", grid.x, cluster);

    waiting_.resize(blocks / cluster);  // the next to run is the last
    std::iota(waiting_.rbegin(), waiting_.rend(), 0);
    if (seed == 1) std::reverse(waiting_.begin(), waiting_.end());
    if (seed > 1) std::shuffle(waiting_.begin(), waiting_.end(), random_);

    size_t resident = cluster;
    if (seed > 1) {
      const size_t most = std::min({kResidentBlocks, kResidentThreads / threads, blocks});
      resident = std::max(most / cluster, size_t{1}) * cluster;
    }
    while (fibers_.size() < resident * threads)
      fibers_.push_back(std::make_unique<Fiber>(&Grid::fiber_main));
    for (size_t i = 0; i < resident; ++i)
      blocks_.push_back(std::make_unique<Block>(threads, &fibers_[i * threads]));
    for (size_t i = 0; i < resident; ++i) {
      for (size_t peer = 0; peer < cluster; ++peer)
        blocks_[i]->cluster.push_back(blocks_[i / cluster * cluster + peer].get());
    }
  }

  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  void run() {
    const sanitizers::Unwatched unwatched;
    running_ = this;
    sanitizers::release(&grid_starts_);
    while (begin_blocks()) {
      if (!take_turns()) report_deadlock();
      end_blocks();
    }
    sanitizers::acquire(&grid_ends_);
    running_ = nullptr;
  }

  // Suspends the running thread until something makes it ready again. Call it unwatched.
  [[gnu::always_inline]] static void wait() {
    Thread* const self = current;
    self->block->warps[self->warp].ready &= ~(uint32_t{1} << self->lane);
    Fiber::switch_to(*self->fiber, scheduler_);
  }

  // griddepcontrol_wait.
  static void wait_for_last_kernel() {
    const sanitizers::Unwatched unwatched;
    if (without_wait) return;
    if (UsedByLastKernel::running()) {
      running_->waiting_for_last_kernel_.push_back(current);
      wait();
    }
    current->block->last_kernel_ended = true;
  }

 private:
  // Resident at once in a shuffled schedule: the race detector needs over 1 MB for each thread.
  static constexpr size_t kResidentBlocks = 3, kResidentThreads = 1024;
  static constexpr size_t kMaxSharedBytes = 227 << 10;  // sm_90

  static size_t count(dim3 size) { return size_t{size.x} * size.y * size.z; }

  // A fiber runs one thread after another, of this grid and of later ones.
  static void fiber_main() {
    {
      const sanitizers::Unwatched unwatched;
      current->fiber->began_from(scheduler_);
    }
    for (;;) {
      begin_thread().kernel_();
      end_thread();
    }
  }

  static Grid& begin_thread() {
    const sanitizers::Unwatched unwatched;
    sanitizers::acquire(&running_->grid_starts_);
    return *running_;
  }

  static void end_thread() {
    const sanitizers::Unwatched unwatched;
    Thread& self = *current;
    if (self.copies.in_flight()) fail("a thread ends with asynchronous copies in flight");
    if (self.products.in_flight()) fail("a thread ends with a wgmma that it has not waited for");
    self.products.begun = false;
    self.copies.forget_groups();
    self.counters.clear();
    self.block->warps[self.warp].alive &= ~(uint32_t{1} << self.lane);
    --self.block->alive;
    sanitizers::release(&running_->grid_ends_);
    wait();
  }

  // Starts waiting clusters as long as there is room; false after all have run.
  bool begin_blocks() {
    bool any = false;
    for (size_t first = 0; first < blocks_.size(); first += cluster_) {
      const std::vector<Block*>& blocks = blocks_[first]->cluster;
      const auto running = [](const Block* block) { return block->running; };
      if (std::none_of(blocks.begin(), blocks.end(), running) && !waiting_.empty()) {
        uint64_t i = waiting_.back() * cluster_;
        waiting_.pop_back();
        for (Block* const block : blocks) {
          block->begin(dim3(i % gridDim.x, i / gridDim.x % gridDim.y, i / gridDim.x / gridDim.y),
                       shared_bytes_);
          ++i;
        }
      }
      any = any || std::any_of(blocks.begin(), blocks.end(), running);
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

  // Runs every warp that is ready once, until a block has ended; false if nothing is ready.
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
      any = any || end_last_kernel();
    }
    return false;
  }

  // False if no thread waits for it.
  bool end_last_kernel() {
    if (waiting_for_last_kernel_.empty()) return false;
    UsedByLastKernel::end();
    for (const Thread* thread : waiting_for_last_kernel_)
      thread->block->warps[thread->warp].ready |= uint32_t{1} << thread->lane;
    waiting_for_last_kernel_.clear();
    return true;
  }

  // Seed 0: runs the lowest ready lane as long as there is one; seed 1: the highest. Others: runs
  // every ready lane once, in an order that changes each time (an odd step visits all).
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
    Fiber::switch_to(scheduler_, *thread.fiber);
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
      if (block->cluster_barrier.arrived) say(describe(block->cluster_barrier, "threads"));
      for (const auto& [address, barrier] : block->mbarriers) {
        if (!barrier.waiting.empty())
          say(std::to_string(barrier.waiting.size()) + " threads wait at mbarrier_wait (" +
              barrier.place.file_name() + ":" + std::to_string(barrier.place.line) + "), which " +
              std::to_string(barrier.missing) + " arrivals and " + std::to_string(barrier.bytes) +
              " bytes are missing for");
      }
      for (unsigned group = 0; group < block->warpgroups.size(); ++group) {
        const WarpgroupMeeting& meeting = block->warpgroups[group];
        if (!meeting.arrived) continue;
        std::string text = describe(meeting, "threads");
        for (unsigned i = 0; i < kWarpgroup; ++i) {
          const unsigned warp = group * kWarpgroup + i;
          if (~meeting.lanes[i]) text += absent(*block, warp, ~meeting.lanes[i]);
        }
        say(text);
      }
      for (unsigned warp = 0; warp < block->warps.size(); ++warp) {
        for (const auto& meeting : block->warps[warp].meetings) {
          if (!meeting->arrived) continue;
          say(describe(*meeting, "lanes") + absent(*block, warp, meeting->mask & ~meeting->lanes));
        }
      }
      const size_t ended = block->threads.size() - block->alive;
      if (ended)
        say(std::to_string(ended) + " of " + std::to_string(block->threads.size()) +
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

  static std::string absent(const Block& block, unsigned warp, uint32_t lanes) {
    const uint32_t ended = lanes & ~block.warps[warp].alive;
    return "; absent of warp " + std::to_string(warp) + ": lanes " + list(lanes) +
           (ended ? " (ended: " + list(ended) + ")" : "");
  }

  static std::string list(uint32_t lanes) {
    std::string text;
    for (unsigned lane = 0; lane < kWarpSize; ++lane) {
      if (lanes >> lane & 1) text += (text.empty() ? "" : ", ") + std::to_string(lane);
    }
    return text;
  }

  static inline std::vector<std::unique_ptr<Fiber>> fibers_;  // shared by all grids, and reused
  // Shared by all grids, too: a resumed fiber records the stack it comes from in the one that left.
  static inline Fiber scheduler_;
  static inline Grid* running_ = nullptr;

  const std::function<void()> kernel_;
  const size_t shared_bytes_;
  std::vector<std::unique_ptr<Block>> blocks_;
  std::vector<uint64_t> waiting_;
  std::vector<const Thread*> waiting_for_last_kernel_;

  const unsigned cluster_, seed_;
  std::mt19937 random_;

  char grid_starts_, grid_ends_;  // only their addresses matter
};

}  // namespace

void wait() { Grid::wait(); }
void wait_for_last_kernel() { Grid::wait_for_last_kernel(); }

void launch(dim3 grid, dim3 block, size_t shared_bytes, unsigned seed,
            std::function<void()> kernel) {
  Grid(grid, block, shared_bytes, 1, seed, std::move(kernel)).run();
}
void launch(dim3 grid, dim3 block, unsigned seed, std::function<void()> kernel) {
  launch(grid, block, 0, seed, std::move(kernel));
}
void launch_clusters(unsigned cluster, dim3 grid, dim3 block, size_t shared_bytes, unsigned seed,
                     std::function<void()> kernel) {
  Grid(grid, block, shared_bytes, cluster, seed, std::move(kernel)).run();
}

}  // namespace simt
