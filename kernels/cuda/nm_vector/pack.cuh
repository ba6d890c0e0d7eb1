// SPDX-License-Identifier: Apache-2.0
// Packs a dense weight to nm_vector on the GPU, one block per tile: the same bytes as the CPU's
// packer writes, and where the weight breaks the pattern.
//
// A bit for each column of a group tells whether it has a nonzero. For each window a thread makes
// the list of kept columns from these bits. Their values are then read again, from the caches.
#pragma once
#include "common/memory.cuh"
#include "cuda/nm_vector/pack_tile.h"
#include "cuda/shared/lanes.cuh"
#include "formats/zero.h"

namespace flashsparse::nm_vector {

inline constexpr int kPackWarps = kPackThreads / kLanes;
inline constexpr int kTileWords = kTileColumns / 32;  // words of bits of a group

// The part of a weight that a block packs.
struct Part {
  int64_t group, row, window, col;  // first of the part
  int groups, rows, windows, cols;  // counts; the last window may have more columns
};
__device__ __forceinline__ Part part_of(const Pattern& pattern, const PackTile& tile, int64_t rows,
                                        int64_t cols) {
  const auto across = static_cast<uint32_t>(tile.across(pattern, cols));
  const int64_t group = static_cast<int64_t>(blockIdx.x / across) * tile.groups;
  const int64_t window = static_cast<int64_t>(blockIdx.x % across) * tile.windows;
  const int64_t row = group * pattern.length, col = window * pattern.m;
  const auto least = [](int64_t a, int64_t b) { return static_cast<int>(a < b ? a : b); };
  return {group,
          row,
          window,
          col,
          least(tile.groups, pattern.groups(rows) - group),
          least(tile.groups * pattern.length, rows - row),
          least(tile.windows, pattern.windows(cols) - window),
          least(tile.windows * pattern.m, cols - col)};
}

// Sets a bit for each column of the part's windows, for each group: whether one of its rows has a
// nonzero there. `corner` is the first weight of the part.
template <class Value>
__device__ __forceinline__ void find_used(const Value* __restrict__ corner, int64_t stride,
                                          const Part& part, const Pattern& pattern,
                                          uint32_t* used) {
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const int length = static_cast<int>(pattern.length), slab = max(length, kLoadRows);
  const int words = (part.windows * static_cast<int>(pattern.m) + 31) / 32;
  const int items = (part.rows + slab - 1) / slab * words;
  for (int item = warp; item < items; item += kPackWarps) {
    const int first = item / words * slab, word = item % words, col = word * 32 + lane;
    int group = first / length;
    Value any = 0;
    for (int row = first; row < first + slab; row += kLoadRows) {
      Value values[kLoadRows];
      FS_UNROLL
      for (int i = 0; i < kLoadRows; ++i) {
        const bool is_inside = row + i < part.rows && col < part.cols;
        values[i] = is_inside ? load_readonly(corner + ((row + i) * stride + col)) : Value{0};
      }
      FS_UNROLL
      for (int i = 0; i < kLoadRows; ++i) {
        any = static_cast<Value>(any | values[i]);
        if ((row + i + 1) & (length - 1)) continue;  // a power of two
        const uint32_t bits = __ballot_sync(kAllLanes, !is_zero(any));
        if (lane == 0 && group < part.groups) used[group * kTileWords + word] = bits;
        ++group;
        any = 0;
      }
    }
  }
}

// Up to 32 bits of `used` from `first` on, at most up to `end`.
__device__ __forceinline__ uint32_t bits_from(const uint32_t* used, int first, int end) {
  const int count = min(end - first, 32), shift = first % 32;
  uint32_t bits = used[first / 32] >> shift;
  if (shift + count > 32) bits |= used[first / 32 + 1] << (32 - shift);
  return count == 32 ? bits : bits & ((1u << count) - 1);
}

// Lists the n kept columns of a window, counted from the tile's first: the used ones and the
// smallest others. Returns the number of used ones; those beyond n are left out.
__device__ __forceinline__ int list_window(const uint32_t* used, int begin, int m, int n,
                                           uint16_t* columns) {
  const int end = begin + m;
  int count = 0, left = n;
  for (int first = begin; first < end; first += 32) count += __popc(bits_from(used, first, end));
  int spare = max(n - count, 0);
  for (int first = begin; first < end && left > 0; first += 32) {
    uint32_t kept = bits_from(used, first, end);
    const int here = min(end - first, 32);
    uint32_t others = ~kept & ~uint32_t{0} >> (32 - here);
    for (; spare > 0 && others; --spare, others &= others - 1) kept |= others & (0 - others);
    for (; left > 0 && kept; --left, kept &= kept - 1) {
      *columns++ = static_cast<uint16_t>(first + __ffs(static_cast<int>(kept)) - 1);
    }
  }
  return count;
}

// Writes the positions of a part's entries to the index. A part begins at a byte, and ends at one
// or with the group.
__device__ __forceinline__ void write_index(const uint16_t* columns, const Part& part,
                                            const Pattern& pattern, int64_t cols, uint8_t* index) {
  const int n = static_cast<int>(pattern.n), m = static_cast<int>(pattern.m);
  const int bits = pattern.index_bits(), entries = part.windows * n;
  const int64_t group_bytes = pattern.index_bytes(cols);
  index += part.group * group_bytes + part.window * n * bits / 8;
  const uint32_t eights = (entries + 7) / 8;  // groups of entries that take `bits` bytes
  for (uint32_t i = threadIdx.x; i < part.groups * eights; i += kPackThreads) {
    const int group = i / eights, first = i % eights * 8, count = min(entries - first, 8);
    int window = first / n, left = (window + 1) * n - first;
    uint64_t positions = 0;
    for (int e = 0; e < count; ++e) {
      const uint32_t position = columns[group * entries + first + e] - window * m;
      positions |= static_cast<uint64_t>(position) << e * bits;
      if (--left == 0) {
        ++window;
        left = n;
      }
    }
    uint8_t* const to = index + group * group_bytes + first / 8 * bits;
    for (int byte = 0; byte * 8 < count * bits; ++byte) {
      to[byte] = static_cast<uint8_t>(positions >> byte * 8);
    }
  }
}

// Packs a weight. Columns past the edge count as zeros. breaches[tile] is breach_of the first
// window with nonzeros in more than n columns, or kNoBreach. If it breaks the pattern, values and
// index are invalid, but no access is out of bounds.
// Launch with tile.tiles() blocks of kPackThreads and tile.shared_bytes() of dynamic shared memory.
template <class Value>
__global__ void __launch_bounds__(kPackThreads)
    pack_kernel(const Value* __restrict__ weight, int64_t rows, int64_t cols, const Pattern pattern,
                const PackTile tile, Value* __restrict__ values, uint8_t* __restrict__ index,
                int32_t* __restrict__ breaches) {
  FS_DYNAMIC_SHARED(dynamic);
  FS_SHARED(uint32_t, used, kTileGroups* kTileWords);
  FS_SHARED(int32_t, breach_of_warp, kPackWarps);
  // Columns of the entries of each group, counted from the part's first.
  auto* const columns = reinterpret_cast<uint16_t*>(dynamic);
  const int n = static_cast<int>(pattern.n), m = static_cast<int>(pattern.m);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const Part part = part_of(pattern, tile, rows, cols);
  const Value* const corner = weight + (part.row * cols + part.col);
  const int entries = part.windows * n;

  find_used(corner, cols, part, pattern, used);
  __syncthreads();

  int32_t breach = kNoBreach;
  const uint32_t windows = part.windows;
  for (uint32_t i = threadIdx.x; i < part.groups * windows; i += kPackThreads) {
    const int group = i / windows, window = i % windows;
    const int count = list_window(used + group * kTileWords, window * m, m, n, columns + i * n);
    if (count > n) breach = min(breach, breach_of(group, tile.windows, window, count));
  }
  breach = reduce_lanes(breach, [](int32_t a, int32_t b) { return min(a, b); });
  if (lane == 0) breach_of_warp[warp] = breach;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int w = 1; w < kPackWarps; ++w) breach = min(breach, breach_of_warp[w]);
    breaches[blockIdx.x] = breach;
  }

  write_index(columns, part, pattern, cols, index);
  const int shift = __ffs(static_cast<int>(pattern.length)) - 1;
  for (int r = warp; r < part.rows; r += kPackWarps) {
    const Value* const row = corner + r * cols;
    const uint16_t* const own = columns + (r >> shift) * entries;
    Value* const to = values + ((part.row + r) * pattern.kept(cols) + part.window * n);
    FS_UNROLL_BY(4)
    for (int entry = lane; entry < entries; entry += kLanes) {
      const int col = own[entry];
      const Value value = col < part.cols ? load_readonly(row + col) : Value{0};
      store_global(to + entry, is_zero(value) ? Value{0} : value);
    }
  }
}

}  // namespace flashsparse::nm_vector
