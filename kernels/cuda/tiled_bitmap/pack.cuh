// SPDX-License-Identifier: Apache-2.0
// Packs a dense weight to tiled_bitmap on the GPU, one warp per unit, to the same bytes as the
// CPU's packer. count_kernel writes the number of lines of each unit, cuda/shared/offsets.cuh makes
// the prefix sum, pack_kernel writes the lines.
#pragma once
#include "common/integer.cuh"
#include "cuda/tiled_bitmap/unit.cuh"

namespace flashsparse::tiled_bitmap {

inline constexpr int kPackWarps = 4;  // units of a block
inline constexpr int kPackThreads = kPackWarps * kLanes;

// Copies a unit to shared memory, with zeros where it exceeds the weight.
__device__ __forceinline__ void stage_unit(const uint16_t* __restrict__ weight, int64_t rows,
                                           int64_t cols, Corner corner, int lane, uint32_t stage) {
  const int64_t rows_here = rows - corner.row, cols_here = cols - corner.col;  // may exceed a unit
  const uint16_t* row = weight + corner.row * cols + corner.col;
  if (whole_chunks(weight, cols)) {
    const int col = lane * kChunk;
    FS_UNROLL
    for (int r = 0; r < kUnitRows; ++r, row += cols) {
      copy_async<16>(stage + r * kRowBytes + lane * sizeof(uint4), row + col,
                     r < rows_here && col < cols_here);
    }
    copy_async_commit();
    copy_async_wait<0>();
  } else {
    for (int r = 0; r < kUnitRows; ++r, row += cols) {
      for (int col = lane; col < kUnitCols; col += kLanes) {
        const uint16_t value = r < rows_here && col < cols_here ? row[col] : uint16_t{0};
        store_shared(stage + r * kRowBytes + col * sizeof(uint16_t), value);
      }
    }
  }
  __syncwarp();
}

// The lane's masks: a bit is 1 where the weight is nonzero.
__device__ __forceinline__ void masks_of(const Pairs& pairs, uint32_t (&masks)[kMaskWords]) {
  FS_UNROLL
  for (int w = 0; w < kMaskWords; ++w) {
    masks[w] = 0;
    FS_UNROLL
    for (int j = 0; j < kChunk; ++j) {
      // Adding 0x7fff carries into the sign bit for every magnitude but 0.
      const uint32_t first = (pairs[w][j][0] & 0x7fff7fff) + 0x7fff7fff;
      const uint32_t second = (pairs[w][j][1] & 0x7fff7fff) + 0x7fff7fff;
      // The sign bytes of four weights, in the order of the mask's bytes: bit 7 is the carry.
      const uint32_t carries = prmt(first, second, 0x7531);
      masks[w] |= carries >> (7 - j) & (0x01010101u << j);
    }
  }
}

__device__ __forceinline__ void load_pairs(uint32_t stage, int lane, Pairs& pairs) {
  FS_UNROLL
  for (int w = 0; w < kMaskWords; ++w) {
    FS_UNROLL
    for (int j = 0; j < kChunk; ++j) {
      FS_UNROLL
      for (int half = 0; half < kHalves; ++half) {
        pairs[w][j][half] = load_shared<uint32_t>(pair_address(stage, lane, w, j, half));
      }
    }
  }
}

// Where a lane's runs begin, in the format's encoding, and where its run 1 ends.
struct Runs {
  uint32_t starts[kRuns];
  uint32_t end;  // items in the column of run 1
};

// Assigns runs to columns. `columns` is a line of shared memory of this warp. When any lane
// returns, all lanes have finished the accesses to shared memory that they made before.
__device__ __forceinline__ Runs place_runs(const uint32_t (&masks)[kMaskWords], int lane,
                                           uint32_t columns) {
  constexpr int kLengthBits = 7;  // 0 to 64
  const uint32_t lengths[kRuns] = {run_length(masks, 0), run_length(masks, 1)};
  const LaneOrder first = order_of_lanes<kLengthBits>(lengths[0]);
  const uint32_t tied = first.equal & lanes_below(lane);
  const uint32_t column = __popc(first.more | tied);
  // Columns are sorted by length now, the fullest first. With the emptiest first, those ahead of
  // this lane's have fewer items, or equally many and a lower number.
  const int emptier = __popc(~(first.more | first.equal) | tied);
  // The start of the run that is appended to this column.
  store_shared(columns + emptier * sizeof(uint32_t), lengths[0] * kLineWords | column);
  __syncwarp();
  const LaneOrder second = order_of_lanes<kLengthBits>(lengths[1]);
  const int longer = __popc(second.more | (second.equal & lanes_below(lane)));
  const uint32_t start = load_shared<uint32_t>(columns + longer * sizeof(uint32_t));
  return {{column, start}, start / kLineWords + lengths[1]};
}

// Value lines of the unit, with `in_word` items per word.
template <int in_word>
__device__ __forceinline__ uint32_t value_lines(const Runs& runs) {
  const uint32_t fullest = reduce_lanes(runs.end, [](uint32_t a, uint32_t b) { return max(a, b); });
  return (fullest + in_word - 1) / in_word;
}

// Writes lengths[u] = lines of unit u. Launch with ceil(units / kPackWarps) blocks of kPackThreads.
template <class Items>
__global__ void __launch_bounds__(kPackThreads)
    count_kernel(const uint16_t* __restrict__ weight, int64_t rows, int64_t cols,
                 int32_t* __restrict__ lengths) {
  FS_SHARED(unsigned char, stages, kPackWarps* kStageBytes);
  FS_SHARED(uint32_t, columns, kPackWarps* kLineWords);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const uint32_t unit = blockIdx.x * kPackWarps + warp;
  if (unit >= units(rows, cols)) return;

  const uint32_t stage = shared_address(stages + warp * kStageBytes);
  stage_unit(weight, rows, cols, corner_of(unit, cols), lane, stage);
  Pairs pairs;
  load_pairs(stage, lane, pairs);
  uint32_t masks[kMaskWords];
  masks_of(pairs, masks);
  const Runs runs = place_runs(masks, lane, shared_address(columns + warp * kLineWords));
  const uint32_t lines = value_lines<kItemsOfWord<Items>>(runs);
  if (lane == 0) lengths[unit] = static_cast<int32_t>(kHeadLines + lines);
}

// Writes a lane's values to their columns, and zeros after its second run up to the last line.
template <class Items>
__device__ __forceinline__ void store_items(const Pairs& pairs, const uint32_t (&masks)[kMaskWords],
                                            const Runs& runs, uint32_t lines, uint32_t values) {
  FS_UNROLL
  for (int run = 0; run < kRuns; ++run) {
    ItemPlace<kItemsOfWord<Items>> item(values, runs.starts[run]);
    FS_UNROLL
    for (int w = run * kRunMasks; w < (run + 1) * kRunMasks; ++w) {
      FS_UNROLL
      for (int j = 0; j < kChunk; ++j) {
        FS_UNROLL
        for (int e = 0; e < 2 * kHalves; ++e) {
          if (masks[w] >> (j + 8 * e) & 1) {
            const uint32_t pair = pairs[w][j][e / 2];
            const auto weight = static_cast<uint16_t>(e % 2 ? pair >> 16 : pair);
            store_shared(item.address, Items::item_of(weight));
            item.next();
          }
        }
      }
    }
    if (run == kRuns - 1) {
      for (uint32_t i = runs.end; i < kItemsOfWord<Items> * lines; ++i) {
        store_shared(item.address, typename Items::Item{0});
        item.next();
      }
    }
  }
}

// Writes lines offsets[u] to offsets[u + 1] of every unit u. Launch with ceil(units / kPackWarps)
// blocks of kPackThreads. `packed` is 16-byte aligned; `offsets` is the prefix sum of
// count_kernel's lengths for the same weight. For CodeItems the weight holds int8 values as
// float16.
template <class Items>
__global__ void __launch_bounds__(kPackThreads, 4)
    pack_kernel(const uint16_t* __restrict__ weight, int64_t rows, int64_t cols,
                const int32_t* __restrict__ offsets, uint32_t* __restrict__ packed) {
  FS_SHARED(unsigned char, stages, kPackWarps* kStageBytes);
  FS_SHARED(uint32_t, columns, kPackWarps* kLineWords);
  const int warp = threadIdx.x / kLanes, lane = threadIdx.x % kLanes;
  const uint32_t unit = blockIdx.x * kPackWarps + warp;
  if (unit >= units(rows, cols)) return;

  const uint32_t stage = shared_address(stages + warp * kStageBytes);
  stage_unit(weight, rows, cols, corner_of(unit, cols), lane, stage);
  Pairs pairs;
  load_pairs(stage, lane, pairs);
  uint32_t masks[kMaskWords];
  masks_of(pairs, masks);
  // Every lane has loaded its pairs when place_runs returns: items may overwrite the rows.
  const Runs runs = place_runs(masks, lane, shared_address(columns + warp * kLineWords));
  const uint32_t lines = value_lines<kItemsOfWord<Items>>(runs);
  store_items<Items>(pairs, masks, runs, lines, stage);
  __syncwarp();

  uint32_t* const head = packed + static_cast<int64_t>(offsets[unit]) * kLineWords;
  store_global(reinterpret_cast<uint4*>(head) + lane,
               make_uint4(masks[0], masks[1], masks[2], masks[3]));
  store_global(head + kMaskLines * kLineWords + lane, runs.starts[0] | runs.starts[1] << 16);
  uint4* const values = reinterpret_cast<uint4*>(head + kHeadLines * kLineWords);
  for (uint32_t i = lane; i < lines * (kLineBytes / sizeof(uint4)); i += kLanes) {
    store_global(values + i, load_shared<uint4>(stage + i * sizeof(uint4)));
  }
}

}  // namespace flashsparse::tiled_bitmap
