// SPDX-License-Identifier: Apache-2.0
// Computes the copy descriptors of all weight rings of a block: which units each warp copies, and
// where to. The warp that copies x does this ahead of need, lane i for warp i, so that the
// bookkeeping of all rings takes the instructions of one. The schedule follows from sizes alone:
// the step that a warp must have read before a copy may start is known in advance.
//
// A descriptor (an "order") covers the units of one step of a warp: for each of them the line at
// which it begins in global memory, and a Place. If the ring has no room for a step, its units are
// not copied but multiplied slowly, from global memory. The first descriptor is published alone,
// all others in batches. A batch overwrites descriptors that all warps are done with.
#pragma once
#include "common/mbarrier.cuh"
#include "common/memory.cuh"
#include "cuda/mma_units/steps.cuh"
#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse::tiled_bitmap {

// Where a unit lies in shared memory, in one word: addresses have 18 bits, of which the low 7 are
// 0.
struct Place {
  uint32_t word;

  // `ahead`, the same for all units of a step: the copy may start when the step that many before
  // has been read. 0 past the last step: such a copy never starts.
  static __device__ __forceinline__ Place of(uint32_t address, uint32_t lines, uint32_t ahead) {
    return {address | lines | ahead << 18};
  }
  // Of units that exceed the ring: they are not copied, and take no space at `address`.
  static __device__ __forceinline__ Place not_copied(uint32_t address, uint32_t ahead) {
    return {of(address, 0, ahead).word | 1 << 22};
  }
  __device__ __forceinline__ uint32_t address() const { return word & 0x3ff80; }
  // Lines to copy; 0 for units past the last column, too.
  __device__ __forceinline__ uint32_t lines() const { return word & 0x7f; }
  __device__ __forceinline__ int ahead() const { return static_cast<int>(word >> 18 & 0xf); }
  __device__ __forceinline__ bool is_not_copied() const { return word >> 22 & 1; }
};

template <class Shape>
class WeightOrders {
 public:
  __device__ __forceinline__ WeightOrders(const Arguments& a, const Cut& cut,
                                          const mma_units::Steps& steps, const Shared& layout,
                                          uint32_t shared)
      : a_(a),
        cut_(cut),
        is_own_(static_cast<int>(threadIdx.x % 32) < cut.row_warps * cut.column_warps),
        row_warp_(cut.by_column_warps(threadIdx.x % 32)),
        column_warp_(static_cast<int>(threadIdx.x % 32) - row_warp_ * cut.column_warps),
        batches_(shared + layout.batches),
        orders_(shared + layout.orders + threadIdx.x % 32 * layout.warp_orders),
        ring_(shared + layout.weights + threadIdx.x % 32 * layout.warp_weights),
        next_(steps) {
    seek();
  }

  // Requests the offsets that the first descriptor needs.
  __device__ __forceinline__ void begin() { prefetch_offsets<1>(); }

  // Called by the first lane, which also arrives on these barriers; a block barrier must follow.
  __device__ __forceinline__ void init() const {
    FS_UNROLL
    for (int i = 0; i < kBatches; ++i) mbarrier_init(batches_ + i * kMbarrierBytes, 1);
  }

  __device__ __forceinline__ void publish_first() {
    publish_some<1>();
    prefetch_offsets<kBatch>();
  }
  // Publishes the next batch, and prefetches the offsets of the one after it.
  __device__ __forceinline__ void publish() {
    publish_some<kBatch>();
    prefetch_offsets<kBatch>();
  }

 private:
  using OfUnits = int[Shape::kRowUnits];

  // Loads the offsets of the next `count` steps.
  template <int count>
  __device__ __forceinline__ void prefetch_offsets() {
    FS_UNROLL
    for (int i = 0; i < count; ++i) {
      const bool is_there = !next_.ended(), inside = is_there && next_.inside(column_warp_);
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        begin_[i][m] = 0;
        end_[i][m] = is_there ? 0 : -1;
        if (!inside || !is_own_) continue;
        const int32_t* const offset =
            a_.offsets + (first_ + next_.column() + min(m, below_) * columns());
        begin_[i][m] = load_readonly(offset);
        end_[i][m] = load_readonly(offset + 1);
      }
      if (is_there && next_.advance()) seek();
    }
  }

  template <int count>
  __device__ __forceinline__ void publish_some() {
    if (is_own_) {
      FS_UNROLL
      for (int i = 0; i < count; ++i) {
        publish_one(begin_[i], end_[i]);
        ++order_;
      }
    }
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(batches_ + batch_ % kBatches * kMbarrierBytes);
    ++batch_;
  }

  __device__ __forceinline__ void publish_one(const OfUnits& begin, const OfUnits& end) {
    const bool is_there = end[0] >= 0;
    uint32_t bytes = 0, at[Shape::kRowUnits], lines[Shape::kRowUnits];
    bool is_full = false;  // exceeds the scratch
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      lines[m] = is_there ? end[m] - begin[m] : 0;
      at[m] = bytes;
      if (lines[m] > 0) bytes += (lines[m] + lines_behind(Shape::kSpreads)) * kLineBytes;
      is_full |= Shape::kSpreads && lines[m] > cut_.scratch_quarters * 4 + kHeadLines;
    }
    const bool has_room = bytes <= cut_.ring_bytes && !is_full;
    if (!has_room) bytes = 0;
    if (order_ - read_ >= kMostAhead) assume_read();
    FS_NO_UNROLL
    while (!reserve(bytes)) assume_read();
    const uint32_t from = filled_to_ - bytes;
    const uint32_t ahead = is_there ? order_ + 1 - read_ : 0;
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      const Place place = has_room ? Place::of(ring_ + from + at[m], lines[m], ahead)
                                   : Place::not_copied(ring_ + from, ahead);
      store_shared(order(order_) + m * kOrderBytes,
                   make_uint2(static_cast<uint32_t>(begin[m]), place.word));
    }
    if (read_ == order_) read_from_ = from;
  }

  __device__ __forceinline__ uint32_t order(int number) const {
    return orders_ + number % kOrders * (Shape::kRowUnits * kOrderBytes);
  }

  // Treats the oldest step in the ring as read.
  __device__ __forceinline__ void assume_read() {
    if (++read_ == order_) return;
    read_from_ = Place{load_shared<uint32_t>(order(read_) + 4)}.address() - ring_;
  }

  // Reserves the next `bytes` of the ring, up to the new filled_to_. False if they are not free.
  __device__ __forceinline__ bool reserve(uint32_t bytes) {
    uint32_t from = filled_to_;
    if (read_ == order_) {
      from = 0;
    } else if (from > read_from_) {
      if (from + bytes > cut_.ring_bytes) {
        if (bytes > read_from_) return false;
        from = 0;
      }
    } else if (from + bytes > read_from_) {
      return false;
    }
    filled_to_ = from + bytes;
    return true;
  }

  // Moves to the first unit of the row tile. Rows of units past the end are clamped to the last
  // one: they are multiplied, but not stored.
  __device__ __forceinline__ void seek() {
    const auto last = static_cast<int>(unit_rows(a_.rows)) - 1;
    const int row = min((next_.set() * cut_.row_warps + row_warp_) * Shape::kRowUnits, last);
    below_ = last - row;
    first_ = row * columns() + column_warp_;
  }
  __device__ __forceinline__ int columns() const { return static_cast<int>(unit_cols(a_.cols)); }

  const Arguments& a_;
  const Cut& cut_;
  const bool is_own_;  // whether there is a warp with this lane's number
  const int row_warp_, column_warp_;
  const uint32_t batches_, orders_, ring_;
  mma_units::Steps next_;
  int first_, below_;                    // first unit of its row; rows of units below it
  OfUnits begin_[kBatch], end_[kBatch];  // of the next steps, in lines; end -1 past the last step
  int order_ = 0, read_ = 0;             // next to publish; oldest step not treated as read,
  uint32_t read_from_ = 0;               // and the offset of its units in the ring
  uint32_t filled_to_ = 0;
  int batch_ = 0;
};

}  // namespace flashsparse::tiled_bitmap
