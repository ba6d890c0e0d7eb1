// SPDX-License-Identifier: Apache-2.0
#include "cpu/tiled_csl.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/aligned_buffer.h"
#include "common/parallel.h"
#include "cpu/kernels.h"
#include "cpu/linear_call.h"
#include "cpu/scalar.h"
#include "formats/interleaved_bitmap.h"
#include "pack/tiled_csl_tile.h"

namespace flashsparse::tiled_csl {
namespace {

using interleaved_bitmap::column_pairs;
using interleaved_bitmap::kPanelRows;
using interleaved_bitmap::kValueSlack;

constexpr int kTilePanels = kTileRows / kPanelRows;

// The panels of one row of tiles as they grow, tile by tile.
struct PanelWriter {
  int count = 0;
  uint32_t* masks[kTilePanels];
  uint16_t* begin[kTilePanels];
  uint16_t* end[kTilePanels];
};

int panels_of(int64_t tile_row, int64_t rows) {
  const int64_t left = interleaved_bitmap::panels(rows) - tile_row * kTilePanels;
  return static_cast<int>(std::min<int64_t>(kTilePanels, left));
}

// Appends every tile of a row of tiles to its panels; reports the tiles that break a rule.
void transcode_row(const cpu::Kernels& kernels, const Packed& packed, int64_t tile_row,
                   PanelWriter& panels, FirstBadTile& bad) {
  const int64_t across = tile_cols(packed.cols);
  TileReader reader(packed);
  for (int64_t t = 0; t < across; ++t) {
    const int64_t index = tile_row * across + t;
    const Tile tile = tile_at(index, packed.rows, packed.cols);
    reader.scatter(index);
    int64_t kept = 0;
    for (int p = 0; p < panels.count; ++p) {
      const int rows = std::min(kPanelRows, tile.rows - p * kPanelRows);
      uint16_t* end = kernels.pack_tile_panel(
          reader.dense() + p * kPanelRows * kTileCols, rows, tile.cols,
          panels.masks[p] + t * (kTileCols / interleaved_bitmap::kMaskCols), panels.end[p]);
      kept += end - panels.end[p];
      panels.end[p] = end;
    }
    if (!reader.sound(index, kept)) bad.report(index);
  }
}

// Room for the values of a row of tiles, with each panel's at the same distance.
void assign_values(PanelWriter& panels, AlignedBuffer& buffer, int64_t cols) {
  const int64_t stride = kPanelRows * cols + kValueSlack;
  uint16_t* values = buffer.get<uint16_t>(panels.count * stride);
  for (int p = 0; p < panels.count; ++p) {
    panels.begin[p] = panels.end[p] = values + p * stride;
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
  const cpu::Kernels& kernels = cpu::kernels();
  const int64_t pairs = column_pairs(packed.cols), tile_row_count = tile_rows(packed.rows);
  FirstBadTile bad;
  std::atomic<bool> counted{true};
  panel_offsets[0] = 0;
  parallel_chunks(tile_row_count, [&](int64_t tile_row) {
    static thread_local AlignedBuffer buffer;
    PanelWriter panels;
    panels.count = panels_of(tile_row, packed.rows);
    assign_values(panels, buffer, packed.cols);
    const int64_t first = tile_row * kTilePanels;
    for (int p = 0; p < panels.count; ++p) panels.masks[p] = masks + (first + p) * pairs;
    transcode_row(kernels, packed, tile_row, panels, bad);

    // Never more than promised: a word that repeats another, or is a zero, adds no value.
    int64_t offset = tile_row_values[tile_row];
    for (int p = 0; p < panels.count; ++p) {
      const int64_t kept = panels.end[p] - panels.begin[p];
      std::memcpy(values + offset, panels.begin[p], kept * sizeof *values);
      panel_offsets[first + p + 1] = offset += kept;
    }
    if (offset != tile_row_values[tile_row + 1]) counted.store(false);
  });
  std::fill_n(values + tile_row_values[tile_row_count], kValueSlack, uint16_t{0});
  return {bad.error(packed), counted.load()};
}

std::string linear(const Packed& packed, Dtype weight_dtype, const void* x, int64_t tokens,
                   const void* bias, void* y, Dtype dtype) {
  std::string error = check_offsets(packed);
  if (!error.empty()) return error;
  const cpu::Kernels& kernels = cpu::kernels();
  const int64_t in = packed.cols, out = packed.rows, pairs = column_pairs(in);
  const int64_t bytes = cpu::bytes_of(dtype);
  FirstBadTile bad;
  for (int64_t begin = 0; begin < tokens; begin += cpu::LinearCall::kMaxTokens) {
    const int64_t slab = std::min(cpu::LinearCall::kMaxTokens, tokens - begin);
    const cpu::LinearCall call(weight_dtype, dtype,
                               static_cast<const char*>(x) + begin * in * bytes, slab, in, bias,
                               out, static_cast<char*>(y) + begin * out * bytes);
    parallel_chunks(tile_rows(out), [&](int64_t tile_row) {
      static thread_local AlignedBuffer value_buffer, mask_buffer;
      PanelWriter panels;
      panels.count = panels_of(tile_row, out);
      assign_values(panels, value_buffer, in);
      uint32_t* masks = mask_buffer.get<uint32_t>(panels.count * pairs);
      for (int p = 0; p < panels.count; ++p) panels.masks[p] = masks + p * pairs;
      transcode_row(kernels, packed, tile_row, panels, bad);
      cpu::Panel views[kTilePanels];
      for (int p = 0; p < panels.count; ++p) views[p] = {panels.masks[p], panels.begin[p]};
      call.multiply(views, panels.count, tile_row * kTilePanels);
    });
    error = bad.error(packed);
    if (!error.empty()) return error;
  }
  return {};
}

}  // namespace flashsparse::tiled_csl
