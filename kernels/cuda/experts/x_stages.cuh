// SPDX-License-Identifier: Apache-2.0
// x in shared memory: rows gathered by slot. One warp, which does not multiply, copies it; all
// others read it. Stages are a ring. Where x is resident, all columns of a block of slots are in
// consecutive stages, which are read again for each of its row tiles, and refilled after the last.
//
// A stage is laid out as by mma_units/linear_shared.h.
#pragma once
#include "common/mbarrier.cuh"
#include "common/memory.cuh"
#include "cuda/experts/arguments.h"
#include "cuda/experts/steps.cuh"

namespace flashsparse::experts {

template <class Shape>
class XStages {
 public:
  // `layout`: mma_units::Shared.
  template <class Layout>
  __device__ __forceinline__ XStages(const Arguments& a, const Cut& cut, const Layout& layout,
                                     uint32_t shared)
      : a_(a), cut_(cut), x_(shared + layout.x), full_(shared) {}

  // Called by one thread; a block barrier must follow.
  __device__ __forceinline__ void init() const {
    FS_NO_UNROLL
    for (int i = 0; i < cut_.x_stages; ++i) {
      mbarrier_init(full_ + i * kMbarrierBytes, 32);
      mbarrier_init(empty() + i * kMbarrierBytes, cut_.row_warps * cut_.column_warps);
    }
  }

  // Copies x of all steps; called by the copying warp.
  __device__ __forceinline__ void fill(Steps steps) const {
    const int lane = threadIdx.x % 32;
    int stage = 0, round = 0;
    for (; !steps.ended(); steps.skip_x()) {
      const int slot = lane < Shape::kTokens
                           ? a_.order.slots[steps.slot_block() * Shape::kTokens + lane]
                           : a_.slots;
      // Slots that pad a block are its last ones.
      const int slots = __popc(__ballot_sync(~0u, slot < a_.slots));
      const int row = cut_.x_rows(slot < a_.slots ? slot : 0);
      FS_NO_UNROLL
      for (int step = 0; step < cut_.set_steps; ++step) {
        if (round > 0) mbarrier_wait(empty() + stage * kMbarrierBytes, (round - 1) % 2);
        copy_step(stage, step * cut_.column_warps, row, slots);
        mbarrier_arrive_after_copies(full_ + stage * kMbarrierBytes);
        if (++stage < cut_.x_stages) continue;
        stage = 0;
        ++round;
      }
    }
    copy_async_commit();
    copy_async_wait<0>();
  }

  // Waits for x of the current step; returns its shared address.
  __device__ __forceinline__ uint32_t wait() const {
    mbarrier_wait(full_ + read_ * kMbarrierBytes, round_ % 2);
    return place(read_, 0);
  }
  // The current step has been read. Call after a warp barrier.
  __device__ __forceinline__ void release(const Steps& steps) {
    const bool ends_x = steps.ends_x();
    if (ends_x && threadIdx.x % 32 == 0) mbarrier_arrive(empty() + read_ * kMbarrierBytes);
    if (++read_ == cut_.x_stages) {
      read_ = 0;
      ++round_;
    }
    if (ends_x || !steps.ends_set()) return;
    // Back to the first stage of these slots. There are a multiple of set_steps.
    if (read_ == 0) {
      read_ = cut_.x_stages;
      --round_;
    }
    read_ -= cut_.set_steps;
  }

 private:
  // Behind the barriers in full_: not held, as registers are scarce.
  __device__ __forceinline__ uint32_t empty() const {
    return full_ + cut_.x_stages * kMbarrierBytes;
  }
  // A unit of columns of a stage.
  __device__ __forceinline__ uint32_t place(int stage, int unit) const {
    return x_ + (stage * cut_.column_warps + unit) * Shape::kXUnitBytes;
  }

  // Copies x of a step, whose columns begin with unit `first`. `row`: of the slot of this lane, of
  // which the first `slots` count. Lanes copy the chunks of one slot.
  __device__ __forceinline__ void copy_step(int stage, int first, int row, int slots) const {
    const uint32_t chunk = threadIdx.x % 32;
    FS_NO_UNROLL
    for (int unit = 0; unit < cut_.column_warps; ++unit) {
      const int column = (first + unit) * 256, from = column + chunk * 8;
      if (column >= a_.cols) return;
      const bool there = from < a_.cols;
      const uint16_t* const source = a_.x + (there ? from : 0);
      const uint32_t to = place(stage, unit) + chunk / 8 * Shape::kPanelBytes;
      FS_UNROLL_BY(4)
      for (int i = 0; i < slots; ++i) {
        const int x_row = __shfl_sync(~0u, row, i);
        copy_async<16>(to + i * 128 + (chunk % 8 ^ i % 8) * 16,
                       source + x_row * int64_t{a_.x_stride}, there);
      }
    }
  }

  const Arguments& a_;
  const Cut& cut_;
  const uint32_t x_;
  const uint32_t full_;       // barriers
  int read_ = 0, round_ = 0;  // the stage to read next; how often all have been read
};

}  // namespace flashsparse::experts
