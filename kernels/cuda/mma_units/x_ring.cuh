// SPDX-License-Identifier: Apache-2.0
// The ring of x in shared memory. All warps copy the first stages; then one warp, which does not
// multiply, refills each stage that all others have read.
#pragma once
#include "common/mbarrier.cuh"
#include "common/memory.cuh"
#include "cuda/mma_units/linear_arguments.h"
#include "cuda/mma_units/linear_shared.h"
#include "cuda/mma_units/steps.cuh"

namespace flashsparse::mma_units {

template <class Shape>
class XRing {
 public:
  // `layout`: the format's Shared.
  template <class Layout>
  __device__ __forceinline__ XRing(const Arguments& a, const Cut& cut, const Layout& layout,
                                   uint32_t shared)
      : a_(a), cut_(cut), stage_bytes_(layout.x_stage), x_(shared + layout.x), full_(shared) {}

  // Called by one thread; a block barrier must follow. `first_warps`: those that call fill_first.
  __device__ __forceinline__ void init(int first_warps) const {
    const int warps = cut_.row_warps * cut_.column_warps;
    FS_NO_UNROLL
    for (int i = 0; i < cut_.x_stages; ++i) {
      mbarrier_init(full_ + i * kMbarrierBytes, 32);
      mbarrier_init(empty() + i * kMbarrierBytes, warps);
    }
    mbarrier_init(first(), first_warps * 32);
  }

  // Copies x of the first steps, together with the other `warps` that call it.
  __device__ __forceinline__ void fill_first(const Steps& steps, int warp, int warps) const {
    const int units = min(cut_.x_stages, steps.left()) * cut_.column_warps;
    FS_NO_UNROLL
    for (int unit = warp; unit < units; unit += warps) {
      const int stage = cut_.by_column_warps(unit);
      copy_unit(stage, steps.column_after(stage), unit - stage * cut_.column_warps);
    }
    mbarrier_arrive_after_copies(first());
  }

  // Copies x of all later steps; called by the copying warp. Calls done() after each refill, when
  // all others have finished another step.
  template <class Done>
  __device__ __forceinline__ void fill_later(Steps steps, Done done) const {
    uint32_t parity = 0;
    FS_NO_UNROLL
    for (int i = 0; i < cut_.x_stages; ++i) {
      if (steps.ended()) return;
      steps.advance();
    }
    for (int stage = 0; !steps.ended(); steps.advance()) {
      mbarrier_wait(empty() + stage * kMbarrierBytes, parity);
      copy_step(stage, steps.column());
      mbarrier_arrive_after_copies(full_ + stage * kMbarrierBytes);
      done();
      if (++stage < cut_.x_stages) continue;
      stage = 0;
      parity ^= 1;
    }
    copy_async_commit();
    copy_async_wait<0>();
  }

  // Waits for x of the current step; returns its shared address.
  __device__ __forceinline__ uint32_t wait() {
    if (phase_ == 0) {
      if (read_ == 0) mbarrier_wait(first(), 0);
    } else {
      mbarrier_wait(full_ + read_ * kMbarrierBytes, (phase_ - 1) % 2);
    }
    return x_ + read_ * stage_bytes_;
  }
  // The current step has been read. Call after a warp barrier.
  __device__ __forceinline__ void release() {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty() + read_ * kMbarrierBytes);
    if (++read_ < cut_.x_stages) return;
    read_ = 0;
    ++phase_;
  }

 private:
  // The barriers behind those in full_: not held, as registers are scarce.
  __device__ __forceinline__ uint32_t empty() const {
    return full_ + cut_.x_stages * kMbarrierBytes;
  }
  __device__ __forceinline__ uint32_t first() const {
    return empty() + cut_.x_stages * kMbarrierBytes;
  }

  // 16-byte chunks of a token in a unit: 32, or 16 for 8-bit x; tokens that a warp copies at once.
  static constexpr int kChunks = Shape::kXUnitBytes / Shape::kTokens / 16, kBeside = 32 / kChunks;
  // Parts of a unit whose copies are independent instructions; registers are scarce beyond.
  static constexpr int kPartsAtOnce = Shape::kTokens <= 8 ? 8 : 1;

  // Copies x of a step, whose columns begin with unit `column`.
  __device__ __forceinline__ void copy_step(int stage, int column) const {
    FS_NO_UNROLL
    for (int unit = 0; unit < cut_.column_warps; ++unit) copy_unit(stage, column, unit);
  }

  // Copies a unit of columns of a step. Lanes copy the chunks of one token, in order, or of two
  // tokens for 8-bit x. Blocks begin with different tokens, so that they do not all request the
  // same lines of the L2 at once.
  __device__ __forceinline__ void copy_unit(int stage, int first, int unit) const {
    const uint32_t lane = threadIdx.x % 32, chunk = lane % kChunks, tokens = a_.tokens;
    // 8-bit x has its own order of columns, up to the end of a row, and is zero there.
    const int end = kBeside == 1 ? a_.cols : a_.x_stride;
    const int column = (first + unit) * (kChunks * 8), from = column + chunk * 8;
    if (column >= end) return;
    const bool there = from < end;
    const uint16_t* const source = a_.x + (there ? from : 0);
    const uint32_t to =
        x_ + stage * stage_bytes_ + unit * Shape::kXUnitBytes + chunk / 8 * Shape::kPanelBytes;
    const uint32_t last = last_part();
    FS_UNROLL_BY(kPartsAtOnce)
    for (uint32_t part = 0; part < 8 / kBeside; ++part) {
      if (part > last) break;
      const uint32_t token = ((part + blockIdx.x) & last) * kBeside + lane / kChunks;
      FS_UNROLL
      for (int n = 0; n < Shape::kTokens / 8; ++n) {
        if (token + n * 8 >= tokens) break;
        copy_async<16>(to + (token + n * 8) * 128 + (chunk % 8 ^ token) * 16,
                       source + (token + n * 8) * int64_t{a_.x_stride}, there);
      }
    }
  }
  // A unit of x is copied in parts of every eighth token, or of two of these. Few tokens make fewer
  // parts, a power of two: the number of the last one.
  __device__ __forceinline__ uint32_t last_part() const {
    const int parts = (a_.tokens + kBeside - 1) / kBeside;
    return kBeside == 2 ? parts > 2 ? 3 : parts > 1 : parts > 4 ? 7 : parts > 2 ? 3 : parts > 1;
  }

  const Arguments& a_;
  const Cut& cut_;
  const uint32_t stage_bytes_, x_;
  const uint32_t full_;       // barriers
  int read_ = 0, phase_ = 0;  // the stage to read next; how often all have been read
};

}  // namespace flashsparse::mma_units
