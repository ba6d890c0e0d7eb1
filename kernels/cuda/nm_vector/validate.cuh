// SPDX-License-Identifier: Apache-2.0
// Validates nm_vector tensors of any origin on the GPU, by the rules of cpu/nm_vector/nm_vector.h.
// Values are counted in order, 16 bytes a thread. For the index a warp takes a group, and a lane
// eight positions.
#pragma once
#include "common/memory.cuh"
#include "cuda/nm_vector/extent.h"
#include "cuda/nm_vector/positions.cuh"
#include "cuda/nm_vector/verdict.h"
#include "cuda/shared/lanes.cuh"

namespace flashsparse::nm_vector {

inline constexpr int kValidateWarps = kValidateThreads / kLanes;

// Counts the nonzero fields.
struct Counter {
  const Fields fields;
  int nonzeros = 0;  // in this thread's share
  bool nan = false;

  __device__ __forceinline__ void add(uint32_t word) {
    const uint32_t low = ~fields.high, own = word & fields.magnitude;
    nonzeros += __popc((((own & low) + low) | own) & fields.high);
    if (fields.has_nan) nan |= ((own + (fields.high >> 7)) & fields.high) != 0;
  }
};

// Counts the nonzeros of `bytes` bytes, 16-byte aligned; every thread of the grid takes a share.
__device__ __forceinline__ void count_values(const uint8_t* __restrict__ values, int64_t bytes,
                                             Counter& counter) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kValidateThreads + threadIdx.x;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kValidateThreads;
  const auto* const vectors = reinterpret_cast<const uint4*>(values);
  const int64_t count = bytes / sizeof(uint4);
  FS_UNROLL_BY(4)
  for (int64_t i = thread; i < count; i += threads) {
    const uint4 four = load_streaming(vectors + i);
    counter.add(four.x), counter.add(four.y), counter.add(four.z), counter.add(four.w);
  }
  if (thread != 0) return;
  FS_NO_UNROLL
  for (int64_t i = count * sizeof(uint4); i < bytes; i += sizeof(uint32_t)) {
    uint32_t word = 0;
    for (int byte = 0; byte < 4 && i + byte < bytes; ++byte) {
      word |= static_cast<uint32_t>(load_readonly(values + i + byte)) << byte * 8;
    }
    counter.add(word);
  }
}

// The rule for eight positions: each is inside of its window, and above the previous one unless it
// is the first of a window. Even and odd positions are compared apart, in fields of twice their
// bits, which have room for a carry. Word holds eight positions.
template <class Word>
class PositionRule {
 public:
  __device__ __forceinline__ PositionRule(int n, int m, int bits) : n_(n), bits_(bits) {
    for (int i = 0; i < 4; ++i) ones_ |= Word{1} << 2 * bits * i;
    field_ = ones_ * ((1u << bits) - 1);
    most_ = ones_ * (m - 1);
  }

  // A bit for each entry that need not be above the previous one. `phase`: that of the first entry
  // in its window; `count`: number of entries.
  __device__ __forceinline__ Word free_entries(int phase, int count) const {
    Word starts = count < 8 ? ~Word{0} << count * bits_ : 0;
    FS_NO_UNROLL
    for (int e = phase ? n_ - phase : 0; e < 8; e += n_) starts |= Word{1} << e * bits_;
    return starts;
  }

  // Whether `count` positions, which follow the position `before`, obey the rule.
  __device__ __forceinline__ bool holds(Word positions, uint32_t before, Word free,
                                        int count) const {
    if (count < 8) positions &= ~(~Word{0} << count * bits_);
    const Word carry = ones_ << bits_;
    const Word even = positions & field_, odd = positions >> bits_ & field_;
    const Word below = (odd << 2 * bits_ & field_) | before;  // of the even positions
    Word sound = ((most_ | carry) - even) & ((most_ | carry) - odd);
    sound &= ((even | carry) - below - ones_) | (free & ones_) << bits_;
    sound &= ((odd | carry) - even - ones_) | (free >> bits_ & ones_) << bits_;
    return (sound & carry) == carry;
  }

 private:
  int n_, bits_;
  Word ones_ = 0, field_,
       most_;  // the lowest bit of each field, the even positions, m - 1 for each
};

// The window in which the first of `count` entries from `first` on breaks a rule. One of them does.
__device__ __forceinline__ int broken_window(const uint8_t* index, int first, int count, int n,
                                             int m, int bits) {
  int entry = first;
  FS_NO_UNROLL
  for (; entry < first + count - 1; ++entry) {
    const uint32_t own = position(index, entry, bits);
    if (own >= static_cast<uint32_t>(m)) break;
    if (entry % n != 0 && own <= position(index, entry - 1, bits)) break;
  }
  return entry / n;
}

// The first block whose positions break a rule, in the groups of this warp.
template <class Word>
__device__ __forceinline__ int64_t check_index(const uint8_t* __restrict__ index,
                                               const Extent& extent, int64_t groups) {
  const int lane = threadIdx.x % kLanes, n = extent.n, bits = extent.bits;
  const int64_t warps = static_cast<int64_t>(gridDim.x) * kValidateWarps;
  const PositionRule<Word> rule(n, extent.m, bits);
  const bool in_step = 8 % n == 0;  // groups of eight begin with a window
  const Word usual = rule.free_entries(0, 8);
  for (int64_t group = static_cast<int64_t>(blockIdx.x) * kValidateWarps + threadIdx.x / kLanes;
       group < groups; group += warps) {
    const uint8_t* const own = index + group * extent.index_bytes;
    FS_UNROLL_BY(2)
    for (int first = lane * 8; first < extent.kept; first += kLanes * 8) {
      const int count = min(extent.kept - first, 8);
      const auto positions = load_positions<Word>(own + first / 8 * bits, bits, count);
      const bool is_usual = in_step && count == 8;
      const Word free = is_usual ? usual : rule.free_entries(first % n, count);
      const uint32_t before = in_step || first == 0 ? 0 : position(own, first - 1, bits);
      if (!rule.holds(positions, before, free, count)) {
        // This lane's other positions come later.
        return group * extent.windows + broken_window(own, first, count, n, extent.m, bits);
      }
    }
  }
  return kNothingBroken;
}

// Field number `entry` of a row.
__device__ __forceinline__ uint32_t load_field(const uint8_t* row, int entry, int bits) {
  if (bits == 4) return load_readonly(row + entry / 2) >> entry % 2 * 4 & 15;
  uint32_t field = 0;
  for (int byte = 0; byte < bits / 8; ++byte) {
    field |= static_cast<uint32_t>(load_readonly(row + int64_t{entry} * (bits / 8) + byte))
             << byte * 8;
  }
  return field;
}

// Ends of rows: what is past the weight's edge must be zero, and the padding of a last byte is not
// counted. Returns the first block that breaks the rule, in the rows of this thread.
__device__ __forceinline__ int64_t check_edge(const uint8_t* __restrict__ values,
                                              const uint8_t* __restrict__ index,
                                              const Extent& extent, int64_t rows, int cols,
                                              Counter& counter) {
  const Fields& fields = counter.fields;
  const int64_t row_bytes = fields.row_bytes(extent.kept);
  const bool fills = row_bytes * 8 != int64_t{extent.kept} * fields.bits;
  const int last = extent.windows - 1, beyond = cols - last * extent.m;  // positions past the edge
  if (beyond == extent.m && !fills) return kNothingBroken;
  const int64_t threads = static_cast<int64_t>(gridDim.x) * kValidateThreads;
  FS_NO_UNROLL
  for (int64_t r = static_cast<int64_t>(blockIdx.x) * kValidateThreads + threadIdx.x; r < rows;
       r += threads) {
    const uint8_t* const row = values + r * row_bytes;
    if (fills) counter.nonzeros -= load_field(row, extent.kept, fields.bits) != 0;
    const int64_t group = r >> extent.length_shift;
    const uint8_t* const own = index + group * extent.index_bytes;
    FS_NO_UNROLL
    for (int entry = extent.kept - extent.n; entry < extent.kept; ++entry) {
      if (position(own, entry, extent.bits) < static_cast<uint32_t>(beyond)) continue;
      const uint32_t field = load_field(row, entry, fields.bits);
      if (field & fields.magnitude >> (32 - fields.bits)) return group * extent.windows + last;
    }
  }
  return kNothingBroken;
}

// Writes what block b finds to found[b]. Launch with any number of blocks of kValidateThreads,
// validate_blocks() for speed. `values` are 16-byte aligned; whatever the tensors hold, no access
// is out of bounds.
__global__ void __launch_bounds__(kValidateThreads, 4)
    validate_kernel(const uint8_t* __restrict__ values, const uint8_t* __restrict__ index,
                    const Fields fields, const Extent extent, int64_t rows, int cols,
                    Found* __restrict__ found) {
  FS_SHARED(int64_t, of_warps, 2 * kValidateWarps);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const auto least = [](int64_t a, int64_t b) { return a < b ? a : b; };
  Counter counter{fields};
  int64_t broken = kNothingBroken;
  // Values are bound by bandwidth and positions by latency: half of the blocks begin with either.
  FS_NO_UNROLL
  for (uint32_t pass = blockIdx.x; pass < blockIdx.x + 2; ++pass) {
    if (pass % 2 == 0) {
      count_values(values, rows * fields.row_bytes(extent.kept), counter);
    } else if (extent.bits <= 4) {
      broken = check_index<uint32_t>(index, extent, extent.groups(rows));
    } else {
      broken = check_index<uint64_t>(index, extent, extent.groups(rows));
    }
  }
  broken = least(broken, check_edge(values, index, extent, rows, cols, counter));
  if (counter.nan) broken = kNanFound;

  broken = reduce_lanes(broken, least);
  const int nonzeros = reduce_lanes(counter.nonzeros, [](int a, int b) { return a + b; });
  if (lane == 0) {
    of_warps[2 * warp] = nonzeros;
    of_warps[2 * warp + 1] = broken;
  }
  __syncthreads();
  if (threadIdx.x != 0) return;
  Found all{0, kNothingBroken};
  for (int w = 0; w < kValidateWarps; ++w) {
    all.nonzeros += of_warps[2 * w];
    all.broken = least(all.broken, of_warps[2 * w + 1]);
  }
  found[blockIdx.x] = all;
}

}  // namespace flashsparse::nm_vector
