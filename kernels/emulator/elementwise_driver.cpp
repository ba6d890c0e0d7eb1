// SPDX-License-Identifier: Apache-2.0
// Runs the kernels between products over every case on stdin and writes the results to stdout. All
// that they read, but for weights, is what the preceding kernel writes.
//   case    int64 kind, bfloat16, seed; int64 and arrays of the kind, below
//   answer  of the kind
#include <cstdint>
#include <cstdlib>

#include "cuda/elementwise/gate_mul.cuh"
#include "cuda/elementwise/rms_norm.cuh"
#include "cuda/elementwise/rope_cache.cuh"
#include "emulator/driver.h"

namespace {

using namespace flashsparse;
using namespace flashsparse::elementwise;

template <size_t count>
struct Numbers {
  int64_t of[count];
  Numbers() { driver::read(of, count); }
};

// int64 tokens, heads, columns, adds_one, x's elements and strides, residual's elements and strides
// (0 elements: none); float epsilon; uint16 x, residual, weight.
// -> uint16 y[tokens][heads][columns], sum like it, if there is a residual
template <class Type>
void run_rms_norm(unsigned seed) {
  const Numbers<10> n;
  const auto& [tokens, heads, columns, adds_one, x_count, x_token, x_head, residual_count,
               residual_token, residual_head] = n.of;
  float epsilon;
  driver::read(&epsilon, 1);
  const auto x = driver::read<uint16_t>(x_count);
  const auto residual = driver::read<uint16_t>(residual_count);
  const auto weight = driver::read<uint16_t>(columns);
  const size_t count = tokens * heads * columns, sums = residual_count ? count : 0;
  const auto y = driver::unwritten<uint16_t>(count), sum = driver::unwritten<uint16_t>(sums);
  RmsNormArguments a{};
  a.x = x.get();
  a.residual = residual_count ? residual.get() : nullptr;
  a.weight = weight.get();
  a.y = y.get();
  a.sum = sum.get();
  a.x_token = x_token;
  a.x_head = x_head;
  a.residual_token = residual_token;
  a.residual_head = residual_head;
  a.tokens = static_cast<int>(tokens);
  a.heads = static_cast<int>(heads);
  a.columns = static_cast<int>(columns);
  a.epsilon = epsilon;
  a.adds_one = adds_one;
  const simt::UsedByLastKernel used[] = {{x.get(), static_cast<size_t>(x_count)},
                                         {residual.get(), static_cast<size_t>(residual_count)},
                                         {y.get(), count},
                                         {sum.get(), sums}};
  const auto kernel = rms_norm_kernel_of<Type>(a.vectors_per_thread());
  simt::launch(simt::dim3(a.tokens, a.heads), a.threads(), seed, [&] { kernel(a); });
  driver::write(y.get(), count);
  driver::write(sum.get(), sums);
}

// int64 tokens, columns, gate, x_token; uint16 x[tokens * x_token] -> uint16 y[tokens][columns]
template <class Type>
void run_gate_mul(unsigned seed) {
  const Numbers<4> n;
  const auto& [tokens, columns, gate, x_token] = n.of;
  const auto x = driver::read<uint16_t>(tokens * x_token);
  const auto y = driver::unwritten<uint16_t>(tokens * columns);
  const GateMulArguments a{x.get(), y.get(), x_token, static_cast<int>(tokens),
                           static_cast<int>(columns)};
  const simt::UsedByLastKernel used[] = {{x.get(), static_cast<size_t>(tokens * x_token)},
                                         {y.get(), static_cast<size_t>(tokens * columns)}};
  const auto kernel = gate_mul_kernel_of<Type>(static_cast<Gate>(gate));
  simt::launch(simt::dim3(a.tokens, a.blocks()), kGateThreads, seed, [&] { kernel(a); });
  driver::write(y.get(), tokens * columns);
}

// int64 tokens, query_heads, kv_heads, head_dim, value_dim, rotary_dim, is_neox, max_positions,
// pages (0: no cache), page_size, cached_tokens, in_place; uint16 qkv[tokens][...], cos_sin; int64
// positions, slots; uint16 cache[pages][page_size][kv_heads][head_dim + value_dim], keys then
// values
// -> uint16 rotated qkv, where not in place 0xffff for values, cache
template <class Type>
void run_rope_cache(unsigned seed) {
  const Numbers<12> n;
  const auto& [tokens, query_heads, kv_heads, head_dim, value_dim, rotary_dim, is_neox,
               max_positions, pages, page_size, cached_tokens, in_place] = n.of;
  const int64_t keys_at = query_heads * head_dim, values_at = keys_at + kv_heads * head_dim;
  const int64_t width = values_at + kv_heads * value_dim, both = head_dim + value_dim;
  const size_t cached = pages * page_size * kv_heads * both;
  const auto qkv = driver::read<uint16_t>(tokens * width);
  const auto cos_sin = driver::read<uint16_t>(max_positions * rotary_dim);
  const auto positions = driver::read<int64_t>(tokens);
  const auto slots = driver::read<int64_t>(cached_tokens);
  const auto cache = driver::read<uint16_t>(cached);
  RopeCacheArguments a{};
  const auto other = driver::unwritten<uint16_t>(tokens * width);
  uint16_t* const to = in_place ? qkv.get() : other.get();
  a.query = qkv.get();
  a.key = qkv.get() + keys_at;
  a.query_to = to;
  a.key_to = to + keys_at;
  a.value = qkv.get() + values_at;
  a.positions = positions.get();
  a.cos_sin = cos_sin.get();
  a.slots = slots.get();
  const PagedCache keys{pages ? cache.get() : nullptr, page_size * kv_heads * both, kv_heads * both,
                        both};
  a.key_cache = a.value_cache = keys;
  a.value_cache.data += head_dim;
  a.query_token = a.key_token = a.value_token = a.query_to_token = a.key_to_token = width;
  a.query_head = a.key_head = a.query_to_head = a.key_to_head = head_dim;
  a.value_head = value_dim;
  a.max_positions = max_positions;
  a.all_slots = pages * page_size;
  a.tokens = static_cast<int>(tokens);
  a.cached_tokens = static_cast<int>(cached_tokens);
  a.query_heads = static_cast<int>(query_heads);
  a.kv_heads = static_cast<int>(kv_heads);
  a.head_dim = static_cast<int>(head_dim);
  a.value_dim = static_cast<int>(value_dim);
  a.rotary_dim = static_cast<int>(rotary_dim);
  a.page_size = static_cast<int>(page_size);
  a.is_neox = is_neox;
  const simt::UsedByLastKernel used[] = {{qkv.get(), static_cast<size_t>(tokens * width)},
                                         {positions.get(), static_cast<size_t>(tokens)},
                                         {slots.get(), static_cast<size_t>(cached_tokens)},
                                         {other.get(), static_cast<size_t>(tokens * width)},
                                         {cache.get(), cached}};
  simt::launch(simt::dim3(a.tokens, a.blocks()), kRopeThreads, seed,
               [&] { rope_cache_kernel<Type>(a); });
  driver::write(to, tokens * width);
  driver::write(cache.get(), cached);
}

template <class Type>
void run(int64_t kind, unsigned seed) {
  if (kind == 0) return run_rms_norm<Type>(seed);
  if (kind == 1) return run_gate_mul<Type>(seed);
  run_rope_cache<Type>(seed);
}

}  // namespace

int main(int argc, char** argv) {
  const driver::Counting counting(argc, argv);
  int64_t header[3];
  while (driver::read_header(header)) {
    const auto& [kind, bfloat16, seed] = header;
    bfloat16 ? run<BFloat16>(kind, seed) : run<Float16>(kind, seed);
  }
}
