// SPDX-License-Identifier: Apache-2.0
// A warp's units on their way: a ring of bytes in shared memory, which the warp has to itself.
// Units differ in size. A stage is the row_units units of a step, in one piece: at the end of the
// ring, where that is too short, it begins at 0 again. Lane i knows where the units of stage i lie.
#pragma once
#include "common/mbarrier.cuh"
#include "common/memory.cuh"
#include "cuda/mma_units/steps.cuh"
#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_shared.h"

namespace flashsparse::tiled_bitmap {

// Where a unit lies in shared memory.
struct Place {
  uint32_t values;
  uint32_t quarters;  // value lines, rounded up to four, by four
  bool has_no_odd;    // lines follow each other

  __device__ __forceinline__ uint32_t row_bytes() const {
    return has_no_odd ? kLineBytes : kRowBytes;
  }
  __device__ __forceinline__ uint32_t head() const {
    return values + quarters * (has_no_odd ? 4 * kLineBytes : kQuarterBytes);
  }

  // In one word: addresses in shared memory have 18 bits.
  __device__ __forceinline__ uint32_t packed() const {
    return values | quarters << 18 | static_cast<uint32_t>(has_no_odd) << 31;
  }
  static __device__ __forceinline__ Place of(uint32_t packed) {
    return {packed & 0x3ffff, packed >> 18 & 0x1f, packed >> 31 != 0};
  }
};

template <class Shape>
class WeightRing {
 public:
  using Places = Place[Shape::kRowUnits];

  // `ring` and `barriers` are the warp's; row_warp and column_warp its place in the block.
  __device__ __forceinline__ WeightRing(const Arguments& a, const Cut& cut,
                                        const mma_units::Steps& steps, int row_warp,
                                        int column_warp, uint32_t ring, uint32_t barriers)
      : a_(a),
        cut_(cut),
        row_warp_(row_warp),
        column_warp_(column_warp),
        ring_(ring),
        barriers_(barriers),
        policy_(once_policy()),
        next_(steps) {
    if (!next_.ended()) seek();
  }

  // One lane's part; a barrier of the block follows.
  static __device__ __forceinline__ void init(const Cut& cut, uint32_t barriers) {
    FS_NO_UNROLL
    for (int i = 0; i < cut.weight_stages; ++i) mbarrier_init(barriers + i * kMbarrierBytes, 32);
  }

  // Starts the copies of the next step; false where there is none, or no room yet.
  __device__ __forceinline__ bool refill() {
    if (stages_ == cut_.weight_stages || next_.ended()) return false;
    const bool inside = next_.inside(cut_, column_warp_);
    uint32_t lines[Shape::kRowUnits];
    Places places;
    uint32_t bytes = 0;
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      lines[m] = inside ? end_[m] - begin_[m] - kHeadLines : 0;
      const uint32_t quarters = (lines[m] + 3) / 4;
      places[m] = {bytes, quarters, place_bytes(quarters) * Shape::kRowUnits > cut_.ring_bytes};
      bytes = places[m].head() + kHeadBytes;
    }
    if (!find_room(bytes)) return false;
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      places[m].values += ring_ + filled_to_ - bytes;
      if (threadIdx.x % 32 == fill_) places_[m] = places[m].packed();
      if (inside) copy(places[m], begin_[m], lines[m]);
    }
    mbarrier_arrive_after_copies(barriers_ + fill_ * kMbarrierBytes);
    ++stages_;
    if (++fill_ == static_cast<uint32_t>(cut_.weight_stages)) fill_ = 0;
    const bool is_other = next_.advance();
    if (next_.ended()) return true;
    if (is_other) {
      seek();
    } else {
      first_ += cut_.column_warps;
      load_offsets();
    }
    return true;
  }

  // As many as may fit now: one for the stage that was released, and another where there was no
  // room for one before.
  __device__ __forceinline__ void refill_after_release() {
    int left = is_behind_ ? 2 : 1;
    FS_NO_UNROLL
    while (left > 0 && refill()) --left;
    is_behind_ = left > 0;
  }

  // Waits for the step that comes now.
  __device__ __forceinline__ void wait(Places& places) {
    mbarrier_wait(barriers_ + read_ * kMbarrierBytes, parity_);
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      places[m] = Place::of(__shfl_sync(~0u, places_[m], read_));
    }
  }
  // After a barrier of the warp: it has read what it waited for.
  __device__ __forceinline__ void release() {
    --stages_;
    if (++read_ == cut_.weight_stages) {
      read_ = 0;
      parity_ ^= 1;
    }
    read_from_ = Place::of(__shfl_sync(~0u, places_[0], read_)).values - ring_;
  }

 private:
  // Moves filled_to_ behind the next so many bytes.
  __device__ __forceinline__ bool find_room(uint32_t bytes) {
    uint32_t from = filled_to_;
    if (stages_ == 0) {
      from = read_from_ = 0;
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

  // To the first unit of the set. Rows of units past the last one are the last one again: they are
  // multiplied, and not stored.
  __device__ __forceinline__ void seek() {
    const auto last = static_cast<int>(unit_rows(a_.rows)) - 1;
    const int row = min((next_.set() * cut_.row_warps + row_warp_) * Shape::kRowUnits, last);
    below_ = last - row;
    first_ = row * columns() + next_.column(cut_) + column_warp_;
    load_offsets();
  }
  // A step ahead, so that nobody waits for them.
  __device__ __forceinline__ void load_offsets() {
    if (!next_.inside(cut_, column_warp_)) return;
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      const int32_t* const offset = a_.offsets + (first_ + min(m, below_) * columns());
      begin_[m] = load_readonly(offset);
      end_[m] = load_readonly(offset + 1);
    }
  }
  __device__ __forceinline__ int columns() const { return static_cast<int>(unit_cols(a_.cols)); }

  // A unit, by 16 bytes a lane: 8 lanes have a line.
  __device__ __forceinline__ void copy(Place place, int first_line, uint32_t lines) const {
    const uint32_t lane = threadIdx.x % 32, group = lane / 8;
    const auto* const from = reinterpret_cast<const unsigned char*>(a_.units) +
                             (int64_t{first_line} * kLineBytes + lane * 16);
    const uint32_t head = place.head() + lane * 16;
    copy_async_once(head, from, policy_);
    const unsigned char* const values = from + kHeadBytes;
    if (place.has_no_odd) {
      if (lane < kLineBytes / 16) {
        copy_async_once(head + kMaskLines * kLineBytes, from + kMaskLines * kLineBytes, policy_);
      }
      FS_NO_UNROLL
      for (uint32_t i = lane; i < lines * (kLineBytes / 16); i += 32) {
        copy_async_once(place.values + i * 16, values + (i - lane) * 16, policy_);
      }
      return;
    }
    const uint32_t row = place.values + group * kRowBytes + lane % 8 * 16;
    // Every place is a constant away: an address that changed would wait for the copy before.
    const uint32_t whole = lines / 4;
    FS_UNROLL
    for (uint32_t i = 0; i < kMostValueLines / 4; i += 4) {
      if (i >= whole) break;
      FS_UNROLL
      for (uint32_t k = i; k < i + 4; ++k) {
        if (k < whole) {
          copy_async_once(row + k * kQuarterBytes, values + k * (4 * kLineBytes), policy_);
        }
      }
    }
    // The first group the starts, the others what remains of the values.
    if (group > lines % 4) return;
    const uint32_t to =
        group == 0 ? head + kMaskLines * kLineBytes : row + whole * kQuarterBytes - kRowBytes;
    const unsigned char* const rest = values - kLineBytes;
    copy_async_once(to, rest + (group == 0 ? 0 : whole * (4 * kLineBytes)), policy_);
  }

  const Arguments& a_;
  const Cut& cut_;
  const int row_warp_, column_warp_;
  const uint32_t ring_, barriers_;
  const uint64_t policy_;
  mma_units::Steps next_;                                // to copy
  int first_, below_;                                    // its first unit; rows of units below that
  int begin_[Shape::kRowUnits], end_[Shape::kRowUnits];  // its units, in lines
  uint32_t places_[Shape::kRowUnits];                    // of the stage of this lane
  uint32_t filled_to_ = 0, read_from_ = 0;               // bytes of the ring
  uint32_t fill_ = 0;                                    // stages: the next to fill,
  int read_ = 0, stages_ = 0;                            // and to read; how many are filled
  uint32_t parity_ = 0;
  bool is_behind_ = false;
};

}  // namespace flashsparse::tiled_bitmap
