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
    for (int i = warp; i < units * kRounds; i += warps) {
      const int unit = i / kRounds, stage = cut_.by_column_warps(unit);
      const int begin = i % kRounds * kPartsAtOnce;
      copy_parts(chunk_of(stage, steps.column_after(stage), unit - stage * cut_.column_warps),
                 begin, begin + kPartsAtOnce);
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
  // Parts of a unit, and those whose copies are independent instructions: of 16 tokens four copies,
  // so that all warps share the first stages evenly.
  static constexpr int kParts = 8 / kBeside;
  static constexpr int kPartsAtOnce = Shape::kTokens <= 8 ? kParts : Shape::kTokens <= 16 ? 2 : 1;
  static constexpr int kRounds = kParts / kPartsAtOnce;

  // A lane's chunk of the first of its tokens in a unit of columns.
  struct Chunk {
    bool exists;  // whether the unit has columns: others are not multiplied
    bool inside;  // whether the chunk has: others are zero
    const unsigned char* from;
    uint32_t to;
  };
  __device__ __forceinline__ Chunk chunk_of(int stage, int first, int unit) const {
    const uint32_t lane = threadIdx.x % 32, chunk = lane % kChunks;
    // 8-bit x has its own order of columns, up to the end of a row, and is zero there.
    const int end = kBeside == 1 ? a_.cols : a_.x_stride;
    const int column = (first + unit) * (kChunks * 8), from = column + chunk * 8;
    Chunk found;
    found.exists = column < end;
    found.inside = from < end;
    found.from = reinterpret_cast<const unsigned char*>(a_.x + (found.inside ? from : 0));
    found.to =
        x_ + stage * stage_bytes_ + unit * Shape::kXUnitBytes + chunk / 8 * Shape::kPanelBytes;
    return found;
  }

  // Copies x of a step, whose columns begin with unit `column`.
  __device__ __forceinline__ void copy_step(int stage, int column) const {
    FS_NO_UNROLL
    for (int unit = 0; unit < cut_.column_warps; ++unit) {
      copy_parts(chunk_of(stage, column, unit), 0, kParts);
    }
  }

  // Copies some parts of a unit: every eighth token. Lanes copy the chunks of one token, in order,
  // or of two tokens for 8-bit x. Blocks begin with different parts, so that they do not all
  // request the same lines of the L2 at once. One warp copies most of x: the time of these
  // instructions is the block's.
  __device__ __forceinline__ void copy_parts(const Chunk& chunk, uint32_t begin,
                                             uint32_t end) const {
    if (!chunk.exists) return;
    const uint32_t lane = threadIdx.x % 32, tokens = a_.tokens, last = last_part();
    const uint32_t row = static_cast<uint32_t>(a_.x_stride) * 2;  // bytes of a token
    FS_UNROLL_BY(kPartsAtOnce)
    for (uint32_t part = begin; part < end; ++part) {
      if (part > last) break;
      const uint32_t token = ((part + blockIdx.x) & last) * kBeside + lane / kChunks;
      const uint32_t to = chunk.to + token * 128 + (lane % 8 ^ token) * 16;
      FS_UNROLL
      for (uint32_t n = 0; n < Shape::kTokens; n += 8) {
        if (token + n < tokens)
          copy_async<16>(to + n * 128, chunk.from + uint64_t{row} * (token + n), chunk.inside);
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
