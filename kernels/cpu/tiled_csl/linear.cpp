// SPDX-License-Identifier: Apache-2.0
// Tiled-CSL as panels, 128 rows at a time: converted to an interleaved bitmap, or multiplied
// directly.
#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/panels.h"
#include "cpu/tiled_csl/kernels.h"
#include "cpu/tiled_csl/tile.h"
#include "cpu/tiled_csl/tiled_csl.h"
#include "formats/panel.h"

namespace flashsparse::tiled_csl {
namespace {

constexpr int kTilePanels = kTileRows / kPanelRows;  // of a tile row
using TileRowPanels = cpu::GrowingPanels<kTilePanels>;

// Appends every tile of a tile row to its panels; reports the tiles that break a rule.
void transcode_row(const Packed& packed, int64_t tile_row, TileRowPanels& panels,
                   cpu::FirstBad& bad) {
  const Kernels& own = kernels();
  const int64_t across = tile_cols(packed.cols);
  TileReader reader(packed);
  for (int64_t t = 0; t < across; ++t) {
    const int64_t index = tile_row * across + t;
    const Tile tile = tile_at(index, packed.rows, packed.cols);
    reader.scatter(index);
    int64_t kept = 0;
    for (int p = 0; p < panels.count; ++p) {
      const int rows = std::min(kPanelRows, tile.rows - p * kPanelRows);
      uint16_t* end =
          own.pack_tile_panel(reader.dense() + p * kPanelRows * kTileCols, rows, tile.cols,
                              panels.masks[p] + t * (kTileCols / kMaskCols), panels.end[p]);
      kept += end - panels.end[p];
      panels.end[p] = end;
    }
    if (!reader.valid(index, kept)) bad.report(index);
  }
}

}  // namespace

std::string count_values(const Packed& packed, int64_t* tile_row_values) {
  std::string error = check_offsets(packed);
  if (!error.empty()) return error;
  const int64_t across = tile_cols(packed.cols);
  tile_row_values[0] = 0;
  for (int64_t tile_row = 0; tile_row < tile_rows(packed.rows); ++tile_row) {
    int64_t values = 0;
    for (int64_t index = tile_row * across; index < (tile_row + 1) * across; ++index) {
      values += words_without_padding(packed.words + packed.offsets[index],
                                      packed.offsets[index + 1] - packed.offsets[index]);
    }
    tile_row_values[tile_row + 1] = tile_row_values[tile_row] + values;
  }
  return {};
}

Transcoding to_interleaved_bitmap(const Packed& packed, const int64_t* tile_row_values,
                                  uint32_t* masks, uint16_t* values, int64_t* panel_offsets) {
  kernels();  // selected before any thread starts
  const int64_t pairs = column_pairs(packed.cols), tile_row_count = tile_rows(packed.rows);
  cpu::FirstBad bad;
  std::atomic<bool> counted{true};
  panel_offsets[0] = 0;
  parallel_chunks(tile_row_count, [&](int64_t tile_row) {
    static thread_local AlignedBuffer buffer;
    auto panels = cpu::panels_of_group<kTilePanels>(tile_row, packed.rows);
    panels.assign_values(buffer, packed.cols);
    const int64_t first = tile_row * kTilePanels;
    for (int p = 0; p < panels.count; ++p) panels.masks[p] = masks + (first + p) * pairs;
    transcode_row(packed, tile_row, panels, bad);

    // Never more values than expected: a word that repeats another, or is a zero, adds none.
    int64_t offset = tile_row_values[tile_row];
    for (int p = 0; p < panels.count; ++p) {
      const int64_t kept = panels.end[p] - panels.begin[p];
      std::memcpy(values + offset, panels.begin[p], kept * sizeof *values);
      panel_offsets[first + p + 1] = offset += kept;
    }
    if (offset != tile_row_values[tile_row + 1]) counted.store(false);
  });
  std::fill_n(values + tile_row_values[tile_row_count], kValueSlack, uint16_t{0});
  return {error_of(bad, packed), counted.load()};
}

std::string linear(const Packed& packed, Dtype weight_dtype, const void* x, int64_t tokens,
                   const void* bias, void* y, Dtype dtype) {
  std::string error = check_offsets(packed);
  if (!error.empty()) return error;
  kernels();  // selected before any thread starts
  cpu::FirstBad bad;
  const cpu::LinearProblem problem{packed.rows, packed.cols, weight_dtype, x, tokens,
                                   bias,        y,           dtype};
  cpu::multiply_after_reading<kTilePanels>(problem, [&](int64_t tile_row, TileRowPanels& panels) {
    transcode_row(packed, tile_row, panels, bad);
  });
  return error_of(bad, packed);
}

}  // namespace flashsparse::tiled_csl
