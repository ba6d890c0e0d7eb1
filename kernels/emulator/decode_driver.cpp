// SPDX-License-Identifier: Apache-2.0
// Runs the decode attention kernel over every case on stdin and writes the results to stdout.
//   case    int64 sequences, kv_heads, group, head_dim, positions, bfloat16, splits, warps, seed
//           (splits 0: as plan_decode decides for `warps` multiprocessors);
//           int64 has_lengths, has_mask, has_phi, has_sinks, has_scales, window, pages,
//           table_width, page_tiles (table_width 0: no table), cached, value_offset; int64
//           element_bytes, key strides[3], value strides[3]: page, head, position; float scale,
//           softcap, low, high; uint16 query[sequences][heads][head_dim]; cache[cached] of
//           element_bytes, keys from its start and values from value_offset on; int32
//           table[sequences][table_width]; int32 lengths[sequences]; uint8
//           mask[sequences][positions]; float phi[heads]; float sinks[heads]; float
//           key_scale[kv_heads], value_scale[kv_heads]: those that the case has
//   answer  uint16 out[sequences][heads][head_dim]; int32 recomputed[sequences][heads]
#include <climits>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "cuda/attention/unified_max_kernel.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::unified_max;

// Converts strides from elements to chunks.
Strides chunks(int64_t page, int64_t head, int64_t position, int64_t element_bytes) {
  const int64_t chunk = 16 / element_bytes;
  if ((page | head | position) % chunk != 0) std::abort();
  return {static_cast<uint32_t>(page / chunk), static_cast<uint32_t>(head / chunk),
          static_cast<uint32_t>(position / chunk)};
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[27];
  while (driver::read_header(header)) {
    const auto& [sequences, kv_heads, group, head_dim, positions, bfloat16, splits, warps, seed,
                 has_lengths, has_mask, has_phi, has_sinks, has_scales, window, pages, table_width,
                 page_tiles, cached, value_offset, element_bytes, key_page, key_head, key_position,
                 value_page, value_head, value_position] = header;
    const auto numbers = driver::read<float>(4);
    const int64_t heads = kv_heads * group;
    const auto query = driver::read<uint16_t>(sequences * heads * head_dim);
    const auto cache = driver::read<uint8_t>(cached * element_bytes);
    const auto table = driver::read<int32_t>(sequences * table_width);
    const auto lengths = driver::read<int32_t>(has_lengths ? sequences : 0);
    const auto mask = driver::read<uint8_t>(has_mask ? sequences * positions : 0);
    const auto phi = driver::read<float>(has_phi ? heads : 0);
    const auto sinks = driver::read<float>(has_sinks ? heads : 0);
    const auto key_scale = driver::read<float>(has_scales ? kv_heads : 0);
    const auto value_scale = driver::read<float>(has_scales ? kv_heads : 0);

    const Problem problem{sequences,
                          kv_heads,
                          group,
                          positions,
                          static_cast<int>(head_dim),
                          static_cast<int>(element_bytes)};
    DecodePlan plan{static_cast<int>(warps), static_cast<int>(splits)};
    if (splits == 0) plan = plan_decode(problem, {static_cast<int>(warps), 227 << 10});
    const auto out = driver::unwritten<uint16_t>(sequences * heads * head_dim);
    const auto recomputed = driver::unwritten<int32_t>(sequences * heads);
    const auto partials = driver::unwritten<float>(plan.partial_floats(problem));
    const auto arrivals = driver::device_array<uint32_t>(problem.rows());
    std::memset(arrivals.get(), 0, problem.rows() * sizeof(uint32_t));

    DecodeArguments arguments;
    arguments.query = query.get();
    arguments.query_sequence = heads * head_dim;
    arguments.query_head = head_dim;
    arguments.key = cache.get();
    arguments.value = cache.get() + value_offset * element_bytes;
    arguments.key_strides = chunks(key_page, key_head, key_position, element_bytes);
    arguments.value_strides = chunks(value_page, value_head, value_position, element_bytes);
    arguments.table = table_width ? table.get() : nullptr;
    arguments.table_stride = static_cast<int>(table_width);
    arguments.pages = static_cast<uint32_t>(pages);
    arguments.page_tiles = table_width ? static_cast<uint32_t>(page_tiles) : INT_MAX;
    arguments.lengths = has_lengths ? lengths.get() : nullptr;
    arguments.positions = static_cast<int>(positions);
    arguments.mask = has_mask ? mask.get() : nullptr;
    arguments.mask_stride = positions;
    arguments.window = static_cast<int>(window);
    arguments.kv_heads = static_cast<int>(kv_heads);
    arguments.group = static_cast<int>(group);
    arguments.scaling = {numbers[0], numbers[1]};
    arguments.phi = has_phi ? phi.get() : nullptr;
    arguments.sinks = has_sinks ? sinks.get() : nullptr;
    arguments.sinks_float32 = true;
    arguments.key_scale = has_scales ? key_scale.get() : nullptr;
    arguments.value_scale = has_scales ? value_scale.get() : nullptr;
    arguments.key_scales_of_heads = arguments.value_scales_of_heads = 1;
    arguments.low = numbers[2];
    arguments.high = numbers[3];
    arguments.out = out.get();
    arguments.recomputed = recomputed.get();
    arguments.partials = partials.get();
    arguments.arrivals = arrivals.get();
    const DecodeKernel kernel = element_bytes == 1 ? compiled_decode<Fp8>(problem, bfloat16)
                                                   : compiled_decode<Native>(problem, bfloat16);
    const auto everything = [](const auto& array, int64_t count) {
      return simt::UsedByLastKernel(array.get(), static_cast<size_t>(count));
    };
    const simt::UsedByLastKernel used[] = {everything(query, sequences * heads * head_dim),
                                           everything(cache, cached * element_bytes),
                                           everything(table, sequences * table_width),
                                           everything(lengths, has_lengths ? sequences : 0),
                                           everything(mask, has_mask ? sequences * positions : 0),
                                           everything(out, sequences * heads * head_dim),
                                           everything(partials, plan.partial_floats(problem)),
                                           everything(arrivals, problem.rows())};
    const simt::dim3 grid(plan.splits, kv_heads * problem.group_blocks(), sequences);
    simt::launch(grid, plan.warps * 32, plan.shared_bytes(problem), seed,
                 [&] { kernel(arguments); });
    for (int64_t i = 0; i < problem.rows(); ++i) {
      if (arrivals[i] != 0) std::abort();  // must be reset
    }
    driver::write(out.get(), sequences * heads * head_dim);
    driver::write(recomputed.get(), sequences * heads);
  }
}
