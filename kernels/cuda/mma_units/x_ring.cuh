// SPDX-License-Identifier: Apache-2.0
// x of a block's steps: a ring in shared memory. All warps copy what fits at first; then one warp,
// which multiplies nothing, copies what a later step needs into each stage that all others have
// read.
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
  // `layout` is of the format.
  template <class Layout>
  __device__ __forceinline__ XRing(const Arguments& a, const Cut& cut, const Layout& layout,
                                   uint32_t shared)
      : a_(a),
        cut_(cut),
        stage_bytes_(layout.x_stage),
        x_(shared + layout.x),
        full_(shared),
        empty_(full_ + cut.x_stages * kMbarrierBytes),
        first_(empty_ + cut.x_stages * kMbarrierBytes) {}

  static __device__ __forceinline__ uint32_t weight_barriers(const Cut& cut, uint32_t shared) {
    return shared + (2 * cut.x_stages + 1) * kMbarrierBytes;
  }

  // One thread's part; a barrier of the block follows. So many warps copy the first x.
  __device__ __forceinline__ void init(int first_warps) const {
    const int warps = cut_.row_warps * cut_.column_warps;
    FS_NO_UNROLL
    for (int i = 0; i < cut_.x_stages; ++i) {
      mbarrier_init(full_ + i * kMbarrierBytes, 32);
      mbarrier_init(empty_ + i * kMbarrierBytes, warps);
    }
    mbarrier_init(first_, first_warps * 32);
  }

  // x of the first steps, by all `warps`, or by one alone.
  template <bool alone = false>
  __device__ __forceinline__ void fill_first(Steps steps, int warp, int warps) const {
    for (int i = 0; i < cut_.x_stages && !steps.ended(); ++i) {
      if constexpr (alone) {
        copy_alone(i, steps);
      } else {
        copy(i, steps, warp, warps);
      }
      steps.advance();
    }
    mbarrier_arrive_after_copies(first_);
  }

  // x of all later steps, by the one warp. Calls done() when all others have done another step, as
  // far as it has to know of that.
  template <class Done>
  __device__ __forceinline__ void fill_later(Steps steps, Done done) const {
    uint32_t parity = 0;
    FS_NO_UNROLL
    for (int i = 0; i < cut_.x_stages; ++i) {
      if (steps.ended()) return;
      steps.advance();
    }
    for (int stage = 0; !steps.ended(); steps.advance()) {
      mbarrier_wait(empty_ + stage * kMbarrierBytes, parity);
      copy_alone(stage, steps);
      mbarrier_arrive_after_copies(full_ + stage * kMbarrierBytes);
      done();
      if (++stage < cut_.x_stages) continue;
      stage = 0;
      parity ^= 1;
    }
    copy_async_commit();
    copy_async_wait<0>();
  }

  // Waits for the step that comes now; returns where its x begins.
  __device__ __forceinline__ uint32_t wait() {
    if (turn_ == 0) {
      if (read_ == 0) mbarrier_wait(first_, 0);
    } else {
      mbarrier_wait(full_ + read_ * kMbarrierBytes, (turn_ - 1) % 2);
    }
    return x_ + read_ * stage_bytes_;
  }
  // After a barrier of the warp: it has read what it waited for.
  __device__ __forceinline__ void release() {
    if (threadIdx.x % 32 == 0) mbarrier_arrive(empty_ + read_ * kMbarrierBytes);
    if (++read_ < cut_.x_stages) return;
    read_ = 0;
    ++turn_;
  }

 private:
  // Chunks of 16 bytes that a token has of a unit: 32, or 16 of codes; and the tokens of which a
  // warp copies all of them at once.
  static constexpr int kChunks = Shape::kXUnitBytes / Shape::kTokens / 16, kBeside = 32 / kChunks;

  static constexpr int kParts = 8 / kBeside;  // of a unit: every eighth token of 256 columns

  // Every `by`th part of a step's x from `first` on.
  __device__ __forceinline__ void copy(int stage, const Steps& steps, int first, int by) const {
    FS_NO_UNROLL
    for (int part = first; part < cut_.column_warps * kParts; part += by) {
      copy_part(stage, steps, part / kParts, part);
    }
  }
  // All of it. A warp alone waits for its own instructions: those of a unit do not depend on each
  // other.
  __device__ __forceinline__ void copy_alone(int stage, const Steps& steps) const {
    FS_NO_UNROLL
    for (int unit = 0; unit < cut_.column_warps; ++unit) {
      FS_UNROLL
      for (int part = 0; part < kParts; ++part) copy_part(stage, steps, unit, part);
    }
  }

  // The chunks of a unit lie in the same order, of codes two such sets. Blocks begin with different
  // tokens, or all would ask for the same lines of the L2 at once.
  __device__ __forceinline__ void copy_part(int stage, const Steps& steps, int unit,
                                            int part) const {
    const uint32_t lane = threadIdx.x % 32, stride = a_.x_stride, tokens = a_.tokens;
    const uint32_t chunk = lane % kChunks;
    const uint32_t place = x_ + stage * stage_bytes_ + chunk / 8 * Shape::kPanelBytes;
    // Codes are in an order of their own up to the end of their row, and zero there.
    const int end = kBeside == 1 ? a_.cols : a_.x_stride;
    const uint32_t token = (part + blockIdx.x) % kParts * kBeside + lane / kChunks;
    const int column = (steps.column(cut_) + unit) * (kChunks * 8), from = column + chunk * 8;
    if (column >= end) return;
    const bool there = from < end;
    const uint16_t* const source = a_.x + (there ? from + size_t{token} * stride : 0);
    const uint32_t to = place + unit * Shape::kXUnitBytes + token * 128 + (chunk % 8 ^ token) * 16;
    FS_UNROLL
    for (int n = 0; n < Shape::kTokens / 8; ++n) {
      if (token + n * 8 >= tokens) break;
      copy_async<16>(to + n * 8 * 128, there ? source + n * 8 * size_t{stride} : source, there);
    }
  }

  const Arguments& a_;
  const Cut& cut_;
  const uint32_t stage_bytes_, x_;
  const uint32_t full_, empty_, first_;  // barriers
  int read_ = 0, turn_ = 0;              // the stage to read next, and how often all have been read
};

}  // namespace flashsparse::mma_units
