// SPDX-License-Identifier: Apache-2.0
// A warp's own ring of units in shared memory. The warp starts each copy as its descriptor says
// (weight_orders.cuh), as soon as it has read what the copy overwrites.
#pragma once
#include "common/bulk_copy.cuh"
#include "common/mbarrier.cuh"
#include "common/memory.cuh"
#include "cuda/tiled_bitmap/linear_arguments.h"
#include "cuda/tiled_bitmap/linear_shared.h"
#include "cuda/tiled_bitmap/weight_orders.cuh"

namespace flashsparse::tiled_bitmap {

template <class Shape>
class WeightRing {
 public:
  using Places = Place[Shape::kRowUnits];

  __device__ __forceinline__ WeightRing(const Arguments& a, const Shared& layout, uint32_t shared,
                                        int warp)
      : packed_(reinterpret_cast<const unsigned char*>(a.units)),
        batches_(shared + layout.batches),
        arrivals_(shared + layout.arrivals + warp * (kMostAhead * kMbarrierBytes)),
        orders_(shared + layout.orders + warp * layout.warp_orders),
        policy_(evict_first_policy()) {}

  // Starts the copies of the first step, when its descriptor has been published. Only this warp
  // uses its barriers, which take a thread some 50 ns each: one is enough to begin with.
  __device__ __forceinline__ void fill_first() {
    init(0, 1);
    mbarrier_wait(batches_, 0);
    read_order();
    copy();
  }
  // Starts all other copies for which there is room.
  __device__ __forceinline__ void fill() {
    init(1, kMostAhead);
    to_next();
    refill();
  }

  // Starts all copies for which there is room. Call after a warp barrier.
  __device__ __forceinline__ void refill() {
    FS_NO_UNROLL
    while (after_ < step_) {
      copy();
      to_next();
    }
  }

  // Waits for the units of the current step.
  __device__ __forceinline__ void wait(Places& places) const {
    mbarrier_wait(arrival(step_), step_ / kMostAhead % 2);
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      places[m] = {load_shared<uint32_t>(order(step_) + m * kOrderBytes + 4)};
    }
  }
  // The address of unit m of the current step in global memory.
  __device__ __forceinline__ const unsigned char* in_memory(int m) const {
    const auto line = load_shared<uint32_t>(order(step_) + m * kOrderBytes);
    return packed_ + uint64_t{line} * kLineBytes;
  }
  // The current step has been read. Call after finish_reads and a warp barrier.
  __device__ __forceinline__ void release() { ++step_; }

 private:
  struct Unit {
    uint32_t line;  // at which it begins in global memory
    Place place;
  };

  __device__ __forceinline__ void init(int begin, int end) const {
    if (threadIdx.x % 32 == 0) {
      FS_NO_UNROLL
      for (int i = begin; i < end; ++i) mbarrier_init(arrival(i), kOnceArrivals);
      mbarrier_init_done();
    }
    __syncwarp();
  }
  // The barrier of a step. That of a later one is the same when this one has been read.
  __device__ __forceinline__ uint32_t arrival(uint32_t step) const {
    return arrivals_ + step % kMostAhead * kMbarrierBytes;
  }
  __device__ __forceinline__ uint32_t order(uint32_t number) const {
    return orders_ + number % kOrders * (Shape::kRowUnits * kOrderBytes);
  }

  __device__ __forceinline__ void copy() const {
    const uint32_t barrier = arrival(next_);
    uint32_t lines = 0;
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) lines += units_[m].place.lines();
    expect_once(barrier, lines * kLineBytes);
    if (lines > 0) {
      FS_UNROLL
      for (int m = 0; m < Shape::kRowUnits; ++m) {
        const Unit& unit = units_[m];
        copy_once({unit.place.address(), packed_ + uint64_t{unit.line} * kLineBytes},
                  unit.place.lines() * kLineBytes, barrier, policy_);
      }
    }
    arrive_after_once(barrier);
  }

  __device__ __forceinline__ void to_next() {
    if (++next_ % kBatch == 1) {  // first of a batch
      const uint32_t batch = next_ / kBatch + 1;
      mbarrier_wait(batches_ + batch % kBatches * kMbarrierBytes, batch / kBatches % 2);
    }
    read_order();
  }

  __device__ __forceinline__ void read_order() {
    FS_UNROLL
    for (int m = 0; m < Shape::kRowUnits; ++m) {
      const uint2 read = load_shared<uint2>(order(next_) + m * kOrderBytes);
      units_[m] = {read.x, {read.y}};
    }
    after_ = static_cast<int>(next_) - units_[0].place.ahead();
  }

  const unsigned char* const packed_;
  const uint32_t batches_, arrivals_, orders_;
  const uint64_t policy_;
  uint32_t next_ = 0;             // number of the next descriptor,
  Unit units_[Shape::kRowUnits];  // its units,
  int after_;                     // and the step that must have been read before
  int step_ = 0;                  // to read next
};

}  // namespace flashsparse::tiled_bitmap
