// SPDX-License-Identifier: Apache-2.0
#include "cpu/interleaved_bitmap.h"

#include <algorithm>

#include "common/parallel.h"
#include "cpu/kernels.h"
#include "cpu/linear_call.h"
#include "cpu/scalar.h"
#include "formats/interleaved_bitmap.h"

namespace flashsparse::interleaved_bitmap {
namespace {

int rows_of(int64_t panel, int64_t rows) {
  return static_cast<int>(std::min<int64_t>(kPanelRows, rows - panel * kPanelRows));
}

// Panels that a thread takes at a time: a sixteenth of its share, so that the last one to finish
// is not far behind, but work enough to be worth the asking. A layer that one thread is through
// with in some 50 us it takes whole: two would gain little, and where another process has one of
// their cores, the wait for the second to get its turn is a hundred times as long.
int64_t chunk_panels(int64_t panels, int64_t in_features, int64_t tokens) {
  constexpr int64_t kMinProducts = 1 << 17, kSerialProducts = 1 << 20;
  const int64_t products = kPanelRows * in_features * std::min<int64_t>(tokens, 8);  // of a panel
  if (panels * products < kSerialProducts) return panels;
  return std::max<int64_t>({panels / (16 * num_threads()), kMinProducts / products, 1});
}

}  // namespace

void count(const uint16_t* weight, int64_t rows, int64_t cols, int64_t* panel_offsets) {
  const cpu::Kernels& kernels = cpu::kernels();
  parallel_chunks(panels(rows), [&](int64_t panel) {
    panel_offsets[panel + 1] =
        kernels.count_nonzeros(weight + panel * kPanelRows * cols, rows_of(panel, rows) * cols);
  });
  panel_offsets[0] = 0;
  for (int64_t panel = 0; panel < panels(rows); ++panel) {
    panel_offsets[panel + 1] += panel_offsets[panel];
  }
}

void pack(const uint16_t* weight, int64_t rows, int64_t cols, const int64_t* panel_offsets,
          uint32_t* masks, uint16_t* values) {
  const cpu::Kernels& kernels = cpu::kernels();
  parallel_chunks(panels(rows), [&](int64_t panel) {
    kernels.pack_panel(weight + panel * kPanelRows * cols, cols, rows_of(panel, rows), cols,
                       masks + panel * column_pairs(cols), values + panel_offsets[panel]);
  });
  std::fill_n(values + panel_offsets[panels(rows)], kValueSlack, uint16_t{0});
}

void unpack(const Weight& packed, uint16_t* weight) {
  const cpu::Kernels& kernels = cpu::kernels();
  const int64_t rows = packed.out_features, cols = packed.in_features;
  parallel_chunks(panels(rows), [&](int64_t panel) {
    kernels.unpack_panel(
        {packed.masks + panel * column_pairs(cols), packed.values + packed.panel_offsets[panel]},
        rows_of(panel, rows), cols, weight + panel * kPanelRows * cols, cols);
  });
}

void linear(const Weight& weight, const void* x, int64_t tokens, const void* bias, void* y,
            Dtype dtype) {
  const int64_t in = weight.in_features, out = weight.out_features, all = panels(out);
  const int64_t bytes = cpu::bytes_of(dtype);
  for (int64_t begin = 0; begin < tokens; begin += cpu::LinearCall::kMaxTokens) {
    const int64_t slab = std::min(cpu::LinearCall::kMaxTokens, tokens - begin);
    const cpu::LinearCall call(weight.dtype, dtype,
                               static_cast<const char*>(x) + begin * in * bytes, slab, in, bias,
                               out, static_cast<char*>(y) + begin * out * bytes);
    const int64_t chunk = chunk_panels(all, in, slab);
    parallel_chunks((all + chunk - 1) / chunk, [&](int64_t index) {
      constexpr int kGroup = 8;
      const int64_t end = std::min(all, (index + 1) * chunk);
      for (int64_t first = index * chunk; first < end; first += kGroup) {
        const int count = static_cast<int>(std::min<int64_t>(kGroup, end - first));
        cpu::Panel group[kGroup];
        for (int p = 0; p < count; ++p) {
          group[p] = {weight.masks + (first + p) * column_pairs(in),
                      weight.values + weight.panel_offsets[first + p]};
        }
        call.multiply(group, count, first);
      }
    });
  }
}

}  // namespace flashsparse::interleaved_bitmap
