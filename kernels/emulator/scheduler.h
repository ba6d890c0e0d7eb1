// SPDX-License-Identifier: Apache-2.0
// Runs a grid of blocks, one block after the other, each CUDA thread on a fiber of its own. A fiber
// runs until it waits at a barrier or ends; then the scheduler picks the next one.
#pragma once
#include <ucontext.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <vector>

#include "emulator/memory.h"
#include "emulator/sanitizers.h"

namespace simt {

struct dim3 {
  unsigned x, y, z;
  constexpr dim3(unsigned x = 1, unsigned y = 1, unsigned z = 1) : x(x), y(y), z(z) {}
};

// Of the running thread; the scheduler sets them before it resumes a fiber.
inline dim3 threadIdx, blockIdx, blockDim, gridDim;

// A kernel did what no GPU allows: says what, and ends the program.
template <class... Args>
[[noreturn]] void fail(const char* format, Args... args) {
  std::fprintf(stderr, "simt emulator: block (%u, %u, %u): ", blockIdx.x, blockIdx.y, blockIdx.z);
  std::fprintf(stderr, format, args...);
  std::fputc('\n', stderr);
  std::exit(3);
}

class Grid {
 public:
  Grid(dim3 grid, dim3 block, unsigned seed, std::function<void()> kernel)
      : kernel_(std::move(kernel)), fibers_(count(block)), order_(fibers_.size()), random_(seed) {
    constexpr size_t kMaxThreads = 1024;
    if (fibers_.empty() || fibers_.size() > kMaxThreads)
      fail("%zu threads a block", fibers_.size());
    gridDim = grid;
    blockDim = block;
    seed_ = seed;
    scheduler_.race_fiber = sanitizers::current_fiber();
    for (Fiber& fiber : fibers_) {
      fiber.race_fiber = sanitizers::create_fiber();
      fiber.stack.reset(new char[kStackBytes]);  // not touched before it is used
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = fiber.stack.get();
      fiber.context.uc_stack.ss_size = kStackBytes;
      makecontext(&fiber.context, &Grid::fiber_main, 0);
    }
  }

  ~Grid() {
    for (Fiber& fiber : fibers_) sanitizers::destroy_fiber(fiber.race_fiber);
  }

  Grid(const Grid&) = delete;
  Grid& operator=(const Grid&) = delete;

  void run() {
    running_ = this;
    for (unsigned z = 0; z < gridDim.z; ++z) {
      for (unsigned y = 0; y < gridDim.y; ++y) {
        for (unsigned x = 0; x < gridDim.x; ++x) run_block(dim3(x, y, z));
      }
    }
    running_ = nullptr;
  }

  static Grid& running() {
    const sanitizers::Unwatched unwatched;
    return *running_;
  }

  // Waits until every thread of the block has come to the barrier on this line.
  void barrier(int line) {
    void* order = nullptr;
    {
      const sanitizers::Unwatched unwatched;
      // Two places take turns: a thread that wakes late must not inherit the order that the next
      // barrier gives.
      order = &barrier_order_[barriers_passed_ % 2];
    }
    sanitizers::release(order);
    {
      const sanitizers::Unwatched unwatched;
      if (arrived_ == 0) barrier_line_ = line;
      if (barrier_line_ != line) {
        fail("some threads wait at __syncthreads on line %d, others on line %d", barrier_line_,
             line);
      }
      current_->state = State::kWaiting;
      if (++arrived_ == fibers_.size()) {
        arrived_ = 0;
        ++barriers_passed_;
        for (Fiber& fiber : fibers_) fiber.state = State::kReady;
      } else {
        switch_fibers(*current_, scheduler_);
      }
    }
    sanitizers::acquire(order);
  }

 private:
  enum class State { kReady, kWaiting, kDone };

  struct Fiber {
    State state = State::kReady;
    ucontext_t context;
    std::unique_ptr<char[]> stack;
    void* race_fiber = nullptr;  // the race detector's name for it
  };

  static constexpr size_t kStackBytes = 128 << 10;

  static size_t count(dim3 size) { return size_t{size.x} * size.y * size.z; }

  // Fiber i runs thread i of every block, so that no stack is ever used by two fibers.
  static void fiber_main() {
    Grid& grid = running();
    for (;;) {
      sanitizers::acquire(&grid.block_starts_);
      grid.kernel_();
      sanitizers::release(&grid.block_ends_);
      grid.end_thread();
    }
  }

  void end_thread() {
    Fiber* self = nullptr;
    {
      const sanitizers::Unwatched unwatched;
      self = current_;
      self->state = State::kDone;
    }
    switch_fibers(*self, scheduler_);
  }

  [[gnu::always_inline]] static void switch_fibers(Fiber& from, Fiber& to) {
    void* race_fiber = nullptr;
    {
      const sanitizers::Unwatched unwatched;
      race_fiber = to.race_fiber;
    }
    sanitizers::switch_to(race_fiber);
    swapcontext(&from.context, &to.context);
  }

  void run_block(dim3 index) {
    blockIdx = index;
    arrived_ = 0;
    for (Fiber& fiber : fibers_) fiber.state = State::kReady;
    sanitizers::release(&block_starts_);
    {
      const sanitizers::Unwatched unwatched;
      while (run_ready_fibers()) {
      }
      const auto done = [](const Fiber& fiber) { return fiber.state == State::kDone; };
      const auto ended = std::count_if(fibers_.begin(), fibers_.end(), done);
      if (static_cast<size_t>(ended) != fibers_.size()) {
        fail("%zu threads wait at __syncthreads on line %d for %zu that have ended", arrived_,
             barrier_line_, static_cast<size_t>(ended));
      }
    }
    sanitizers::acquire(&block_ends_);
    shared_memory.clear();
  }

  // One turn of every ready fiber, in the order that the seed asks for.
  bool run_ready_fibers() {
    std::iota(order_.begin(), order_.end(), 0);
    if (seed_ == 1) std::reverse(order_.begin(), order_.end());
    if (seed_ > 1) std::shuffle(order_.begin(), order_.end(), random_);
    bool any = false;
    for (const unsigned i : order_) {
      if (fibers_[i].state != State::kReady) continue;
      any = true;
      current_ = &fibers_[i];
      threadIdx = dim3(i % blockDim.x, i / blockDim.x % blockDim.y, i / blockDim.x / blockDim.y);
      switch_fibers(scheduler_, *current_);
    }
    return any;
  }

  static inline Grid* running_ = nullptr;

  std::function<void()> kernel_;
  std::vector<Fiber> fibers_;
  Fiber scheduler_;
  Fiber* current_ = nullptr;

  unsigned seed_ = 0;
  std::vector<unsigned> order_;
  std::mt19937 random_;

  size_t arrived_ = 0;
  int barrier_line_ = 0;
  unsigned barriers_passed_ = 0;
  char barrier_order_[2], block_starts_, block_ends_;  // only their addresses matter
};

inline void barrier(int line) { Grid::running().barrier(line); }

// Runs `kernel` once for every thread of the grid: launch(grid, block, seed, [&] { kernel(...); }).
// The seed chooses the order of threads: 0 rising, 1 falling, others shuffled anew at every turn.
inline void launch(dim3 grid, dim3 block, unsigned seed, std::function<void()> kernel) {
  Grid(grid, block, seed, std::move(kernel)).run();
}

}  // namespace simt
