// SPDX-License-Identifier: Apache-2.0
// The ops between products on CUDA: checks, allocation, and one launch. They do not synchronize, so
// that CUDA graphs can capture them.
#include <climits>
#include <string>

#include "bindings/cuda.h"
#include "bindings/early_begin.h"
#include "cuda/elementwise/elementwise.h"

namespace flashsparse {
namespace {

using namespace elementwise;

constexpr int64_t kMostOfAxis = 65535;  // of a grid's second dimension

// A 16-bit tensor on the GPU whose last dimension is contiguous, with rows on 16 bytes.
void check(const char* op, const char* name, const Tensor& t, const Tensor& like, int64_t dims) {
  FS_CHECK(t.is_cuda() && t.device() == like.device(), op, ": ", name,
           " must be on the CUDA device of the others");
  FS_CHECK(t.scalar_type() == ScalarType::Half || t.scalar_type() == ScalarType::BFloat16, op, ": ",
           name, " must be float16 or bfloat16 on CUDA");
  FS_CHECK(t.scalar_type() == like.scalar_type(), op, ": ", name,
           " must have the dtype of the others");
  FS_CHECK(t.dim() == dims, op, ": ", name, " must have ", dims, " dimensions, has ", t.dim());
  const int64_t columns = t.size(dims - 1);
  FS_CHECK(columns >= 8 && columns % 8 == 0, op, ": ", name,
           " must end in a multiple of 8 columns, not ", columns);
  bool aligned = reinterpret_cast<uintptr_t>(t.const_data_ptr()) % 16 == 0 &&
                 (t.stride(dims - 1) == 1 || t.numel() == 0);
  for (int64_t i = 0; i + 1 < dims; ++i)
    aligned = aligned && (t.size(i) == 1 || t.stride(i) % 8 == 0);
  FS_CHECK(aligned, op, ": ", name,
           " must have its rows on 16 bytes, with adjacent elements: pass ", name, ".contiguous()");
  FS_CHECK(t.numel() / columns <= INT_MAX && columns <= INT_MAX / 16, op, ": ", name,
           " is too large");
}

int small(int64_t value) { return static_cast<int>(value); }

// x [tokens, columns] or [tokens, heads, columns].
struct Rows {
  Rows(const Tensor& x)
      : tokens(x.size(0)),
        heads(x.dim() == 3 ? x.size(1) : 1),
        columns(x.size(x.dim() - 1)),
        token(x.stride(0)),
        head(x.dim() == 3 ? x.stride(1) : 0) {}
  int64_t tokens, heads, columns, token, head;
};

bool is_bfloat16(const Tensor& t) { return t.scalar_type() == ScalarType::BFloat16; }

void norm(const char* op, const Tensor& x, const Tensor* residual, const Tensor& weight,
          double epsilon, bool adds_one, Tensor& y, Tensor* sum) {
  const Rows rows(x);
  FS_CHECK(rows.columns <= kMaxNormColumns, op, ": rows have at most ", kMaxNormColumns,
           " columns, not ", rows.columns);
  FS_CHECK(rows.heads <= kMostOfAxis, op, ": at most ", kMostOfAxis, " heads, not ", rows.heads);
  check(op, "weight", weight, x, 1);
  FS_CHECK(weight.size(0) == rows.columns, op, ": weight must be [", rows.columns, "]");
  RmsNormArguments a{};
  if (residual) {
    check(op, "residual", *residual, x, x.dim());
    for (int64_t i = 0; i < x.dim(); ++i) {
      FS_CHECK(residual->size(i) == x.size(i), op, ": residual must have the shape of x");
    }
    const Rows added(*residual);
    a.residual = bits(*residual);
    a.residual_token = added.token;
    a.residual_head = added.head;
    a.sum = mutable_bits(*sum);
  }
  if (x.numel() == 0) return;
  a.x = bits(x);
  a.weight = bits(weight);
  a.y = mutable_bits(y);
  a.x_token = rows.token;
  a.x_head = rows.head;
  a.tokens = small(rows.tokens);
  a.heads = small(rows.heads);
  a.columns = small(rows.columns);
  a.epsilon = static_cast<float>(epsilon);
  a.adds_one = adds_one;
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  STD_CUDA_CHECK(
      cuda::rms_norm(a, is_bfloat16(x), gpu_of(x).has_dependent_launch(), current_stream(x)));
  lets_begin(y);
}

Tensor new_like(const Tensor& x) {
  std::vector<int64_t> shape;
  for (int64_t i = 0; i < x.dim(); ++i) shape.push_back(x.size(i));
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  return allocate_like(x, shape);
}

void check_rows(const char* op, const Tensor& x) {
  FS_CHECK(x.dim() == 2 || x.dim() == 3, op, ": x must be [tokens, columns] or [tokens, heads, ",
           "columns], has ", x.dim(), " dimensions");
  check(op, "x", x, x, x.dim());
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon, bool adds_one) {
  check_rows("rms_norm", x);
  Tensor y = new_like(x);
  norm("rms_norm", x, nullptr, weight, epsilon, adds_one, y, nullptr);
  return y;
}

std::tuple<Tensor, Tensor> add_rms_norm(const Tensor& x, const Tensor& residual,
                                        const Tensor& weight, double epsilon, bool adds_one) {
  check_rows("add_rms_norm", x);
  Tensor y = new_like(x), sum = new_like(x);
  norm("add_rms_norm", x, &residual, weight, epsilon, adds_one, y, &sum);
  return {y, sum};
}

Tensor gate_mul(const Tensor& x, const std::string& activation) {
  const bool is_silu = activation == "silu";
  FS_CHECK(is_silu || activation == "gelu_tanh",
           "gate_mul: activation must be silu or gelu_tanh, not ", activation);
  FS_CHECK(x.dim() == 2 || x.dim() == 3, "gate_mul: x must have 2 or 3 dimensions, has ", x.dim());
  check("gate_mul", "x", x, x, x.dim());
  const Rows rows(x);
  FS_CHECK(rows.columns % 16 == 0,
           "gate_mul: gate and up must have a multiple of 8 columns each, "
           "not ",
           rows.columns, " together");
  FS_CHECK(x.dim() == 2 || rows.heads == 1 || rows.token == rows.heads * rows.head,
           "gate_mul: the first two dimensions of x must be one: pass x.contiguous()");
  const torch::stable::accelerator::DeviceGuard guard(x.get_device_index());
  std::vector<int64_t> shape;
  for (int64_t i = 0; i + 1 < x.dim(); ++i) shape.push_back(x.size(i));
  shape.push_back(rows.columns / 2);
  Tensor y = allocate_like(x, shape);
  if (y.numel() == 0) return y;
  const bool flat = x.dim() == 2 || rows.heads == 1;
  const GateMulArguments a{bits(x), mutable_bits(y), flat ? rows.token : rows.head,
                           small(rows.tokens * rows.heads), small(rows.columns / 2)};
  FS_CHECK(a.blocks() <= kMostOfAxis, "gate_mul: x has too many columns");
  STD_CUDA_CHECK(cuda::gate_mul(a, is_silu ? Gate::kSilu : Gate::kGeluTanh, is_bfloat16(x),
                                gpu_of(x).has_dependent_launch(), current_stream(x)));
  lets_begin(y);
  return y;
}

const int64_t* numbers(const char* name, const Tensor& t, const Tensor& key) {
  FS_CHECK(t.scalar_type() == ScalarType::Long && t.device() == key.device() && t.dim() == 1 &&
               (t.numel() <= 1 || t.stride(0) == 1),
           "rope_cache: ", name, " must be int64, contiguous and beside key");
  return t.const_data_ptr<int64_t>();
}

PagedCache paged(const char* name, Tensor& cache, const Tensor& key, int64_t dim) {
  check("rope_cache", name, cache, key, 4);
  FS_CHECK(cache.size(2) == key.size(1) && cache.size(3) == dim, "rope_cache: ", name,
           " must be [blocks, block_size, ", key.size(1), ", ", dim, "]");
  return {mutable_bits(cache), cache.stride(0), cache.stride(1), cache.stride(2)};
}

// Rotates `query`, if there is one, and `key`.
void set_rotation(RopeCacheArguments& a, const std::optional<Tensor>& query, const Tensor& key,
                  const Tensor& positions, const Tensor& cos_sin, bool is_neox) {
  a.positions = numbers("positions", positions, key);
  FS_CHECK(positions.size(0) == a.tokens, "rope: positions must be [", a.tokens, "]");
  check("rope", "cos_sin", cos_sin, key, 2);
  FS_CHECK(cos_sin.is_contiguous() && cos_sin.size(0) > 0,
           "rope: cos_sin must be contiguous, with a row at least");
  const int64_t rotary_dim = cos_sin.size(1);
  FS_CHECK(rotary_dim % 16 == 0 && rotary_dim <= a.head_dim,
           "rope: rotary_dim must be a multiple of 16 up to head_dim ", a.head_dim, ", not ",
           rotary_dim);
  a.cos_sin = bits(cos_sin);
  a.rotary_dim = small(rotary_dim);
  a.max_positions = cos_sin.size(0);
  a.is_neox = is_neox;
  if (!query) return;
  check("rope", "query", *query, key, 3);
  FS_CHECK(query->size(0) == a.tokens && query->size(2) == a.head_dim, "rope: query must be [",
           a.tokens, ", heads, ", a.head_dim, "]");
  a.query = bits(*query);
  a.query_token = query->stride(0);
  a.query_head = query->stride(1);
  a.query_heads = small(query->size(1));
}

RopeCacheArguments of_key(const Tensor& key) {
  check("rope", "key", key, key, 3);
  RopeCacheArguments a{};
  a.key = bits(key);
  a.key_token = key.stride(0);
  a.key_head = key.stride(1);
  a.tokens = small(key.size(0));
  a.kv_heads = small(key.size(1));
  a.head_dim = small(key.size(2));
  a.page_size = 1;
  return a;
}

void launch(const RopeCacheArguments& a, const Tensor& key) {
  if (a.tokens == 0 || a.items() == 0) return;
  FS_CHECK(a.blocks() <= kMostOfAxis, "rope: too many heads");
  const torch::stable::accelerator::DeviceGuard guard(key.get_device_index());
  STD_CUDA_CHECK(cuda::rope_cache(a, is_bfloat16(key), gpu_of(key).has_dependent_launch(),
                                  current_stream(key)));
}

std::tuple<Tensor, Tensor> rope(const Tensor& query, const Tensor& key, const Tensor& positions,
                                const Tensor& cos_sin, bool is_neox) {
  RopeCacheArguments a = of_key(key);
  set_rotation(a, query, key, positions, cos_sin, is_neox);
  Tensor query_to = new_like(query), key_to = new_like(key);
  a.query_to = mutable_bits(query_to);
  a.query_to_token = query.size(1) * query.size(2);
  a.key_to = mutable_bits(key_to);
  a.key_to_token = key.size(1) * key.size(2);
  a.query_to_head = a.key_to_head = a.head_dim;
  launch(a, key);
  lets_begin(query_to);
  return {query_to, key_to};
}

void rope_cache(std::optional<Tensor> query, Tensor key, const std::optional<Tensor>& value,
                const std::optional<Tensor>& positions, const std::optional<Tensor>& cos_sin,
                bool is_neox, std::optional<Tensor> key_cache, std::optional<Tensor> value_cache,
                const std::optional<Tensor>& slots) {
  RopeCacheArguments a = of_key(key);
  FS_CHECK(positions.has_value() == cos_sin.has_value(),
           "rope_cache: a rotation needs positions and cos_sin");
  FS_CHECK(key_cache.has_value() == value_cache.has_value() &&
               key_cache.has_value() == slots.has_value() && (!key_cache || value),
           "rope_cache: a cache needs key_cache, value_cache, slots and value");
  a.key_to = mutable_bits(key);
  a.key_to_token = a.key_token;
  a.key_to_head = a.key_head;
  if (positions) {
    set_rotation(a, query, key, *positions, *cos_sin, is_neox);
    if (query) a.query_to = mutable_bits(*query);
    a.query_to_token = a.query_token;
    a.query_to_head = a.query_head;
  }
  if (key_cache) {
    check("rope_cache", "value", *value, key, 3);
    FS_CHECK(value->size(0) == a.tokens && value->size(1) == a.kv_heads,
             "rope_cache: value must be [", a.tokens, ", ", a.kv_heads, ", value_dim]");
    a.value = bits(*value);
    a.value_token = value->stride(0);
    a.value_head = value->stride(1);
    a.value_dim = small(value->size(2));
    a.key_cache = paged("key_cache", *key_cache, key, key.size(2));
    a.value_cache = paged("value_cache", *value_cache, key, value->size(2));
    for (int i = 0; i < 2; ++i) {
      FS_CHECK(key_cache->size(i) == value_cache->size(i),
               "rope_cache: key_cache and value_cache must have the same blocks");
    }
    a.slots = numbers("slots", *slots, key);
    FS_CHECK(slots->size(0) <= a.tokens, "rope_cache: slots are for ", slots->size(0),
             " tokens, key for ", a.tokens);
    a.cached_tokens = small(slots->size(0));
    a.page_size = small(key_cache->size(1));
    a.all_slots = key_cache->size(0) * key_cache->size(1);
    if (a.all_slots == 0) a.key_cache.data = nullptr;
  }
  launch(a, key);
  if (key_cache) lets_begin(*key_cache);  // of which decode attention reads
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("rms_norm", TORCH_BOX(&rms_norm));
  m.impl("add_rms_norm", TORCH_BOX(&add_rms_norm));
  m.impl("gate_mul", TORCH_BOX(&gate_mul));
  m.impl("rope", TORCH_BOX(&rope));
  m.impl("rope_cache", TORCH_BOX(&rope_cache));
}

}  // namespace
}  // namespace flashsparse
