// SPDX-License-Identifier: Apache-2.0
// A layer of experts in sparse_24 on CUDA: argument checks, allocation, and four or five launches
// on the current stream, which hold any routing.
#include <cmath>
#include <limits>
#include <optional>
#include <string>

#include "bindings/cuda.h"
#include "bindings/experts.h"
#include "bindings/override.h"
#include "bindings/sparse_24.h"
#include "bindings/sparse_24_experts.h"
#include "cuda/experts/experts.h"
#include "cuda/sparse_24/experts.h"

namespace flashsparse {
namespace {

using sparse_24::ExpertsPlan;
using sparse_24::ExpertsProduct;
using sparse_24::ExpertsWgmmaPlan;

int64_t stride_of(int64_t columns) { return (columns + 7) / 8 * 8; }

// The units of a product's weight, its scales of rows and its bias, by their names.
struct ExpertsWeight {
  const Tensor& units;
  const float* scales = nullptr;
  std::optional<Tensor> bias;  // contiguous, in the dtype of x

  ExpertsWeight(const char* name, const Tensor& units_, const std::optional<Tensor>& scales_,
                const std::optional<Tensor>& bias_, const Tensor& x, const ExpertsProduct& product)
      : units(units_) {
    const int64_t experts = product.experts, down = product.expert_unit_rows();
    const int64_t across = sparse_24::unit_cols(product.cols), words = product.unit.words();
    FS_CHECK(units.size(0) == experts && units.size(1) == down && units.size(2) == across &&
                 units.size(3) == words,
             name, " must be units [", experts, ", ", down, ", ", across, ", ", words, "], not [",
             units.size(0), ", ", units.size(1), ", ", units.size(2), ", ", units.size(3), "]");
    FS_CHECK(reinterpret_cast<uintptr_t>(units.const_data_ptr()) % 16 == 0, name,
             " must start on 16 bytes: pass a tensor of its own and not a slice, e.g. ", name,
             ".clone()");
    FS_CHECK(scales_.has_value() == product.unit.has_row_scales(), name,
             product.unit.has_row_scales() ? "_scale is missing: these values have scales of rows"
                                           : "_scale is given, but these values have none of rows");
    if (scales_) {
      const std::string scale = std::string(name) + "_scale";
      check_tensor(*scales_, scale.c_str(), ScalarType::Float, 2);
      check_beside(*scales_, scale.c_str(), x, "x");
      FS_CHECK(scales_->size(0) == experts && scales_->size(1) == down * 16, scale, " must be [",
               experts, ", ", down * 16, "], one for each row of units, not [", scales_->size(0),
               ", ", scales_->size(1), "]");
      scales = scales_->const_data_ptr<float>();
    }
    if (!bias_) return;
    const int64_t rows = product.rows * (product.gated ? 2 : 1);
    FS_CHECK(bias_->dim() == 2 && bias_->size(0) == experts && bias_->size(1) == rows, name,
             "_bias must be [", experts, ", ", rows, "]");
    check_beside(*bias_, (std::string(name) + "_bias").c_str(), x, "x");
    bias = as_contiguous(in_dtype(*bias_, x.scalar_type()));
  }
};

void check_units(const Tensor& units, const char* name, const Tensor& x) {
  check_tensor(units, name, ScalarType::Int, 4);
  check_beside(units, name, x, "x");
}

experts::Activation activation_of(const std::string& name, double limit, double alpha) {
  FS_CHECK(std::isfinite(alpha) && std::isfinite(limit) && limit >= 0,
           "alpha and limit are finite, and limit is 0 (none) or above");
  const float most = limit > 0 ? static_cast<float>(limit) : std::numeric_limits<float>::infinity();
  if (name == "silu") return {1, 0, most};
  FS_CHECK(name == "swigluoai", "activation must be silu or swigluoai, not ", name);
  return {static_cast<float>(alpha), 1, most};
}

// The launches of a layer: those that a benchmark gave, or else the planned ones.
template <class Kernel>
struct Launches {
  decltype(Kernel::empty({})) up, down;

  Launches(const ExpertsProduct& up_, const ExpertsProduct& down_, const Gpu& gpu) {
    const GivenLaunch* given = given_launch(Kernel::kUp);
    if (!given) given = given_launch(Kernel::kDown);
    const int shape = given && !given->numbers.empty() ? static_cast<int>(given->numbers[0])
                                                       : Kernel::layer(up_, down_, gpu).shape;
    up = launch_of(Kernel::kUp, up_, shape, gpu);
    down = launch_of(Kernel::kDown, down_, shape, gpu);
    FS_CHECK(block_slots() == down.info().tokens, "launches of ", Kernel::kUp, " and ",
             Kernel::kDown, " must have shapes of equally many tokens");
  }

  int block_slots() const { return up.info().tokens; }

 private:
  static auto launch_of(const char* name, const ExpertsProduct& product, int shape,
                        const Gpu& gpu) {
    auto plan = Kernel::empty(product);
    if (GivenLaunch* const given = given_launch(name)) {
      set_numbers(plan, given->numbers);
      ++given->launches;
    } else {
      plan = Kernel::price(product, shape, gpu).launch;
    }
    const char* const broken = plan.broken_rule(product, gpu);
    FS_CHECK(!broken, name, " has no launch for ", product.tokens, " tokens with ", product.top_k,
             " of ", product.experts, " experts each, [", product.rows, ", ", product.cols,
             "]: ", broken, ". Remedy: fewer tokens at a time, or experts that stay dense");
    return plan;
  }
};

// What both kernels are launched with.
struct Layer {
  const experts::Routing& routing;
  int top_k;
  const ExpertsProduct &up, &down;
  const ExpertsWeight &first, &last;
  const experts::Activation& activation;
  const Tensor &x, &weights;  // x with aligned rows; of the router, float32
  bool weights_on_input, bfloat16, early;
  cudaStream_t stream;

  Tensor rows(int64_t count, const ExpertsProduct& product) const {  // of y of a product
    return allocate_like(x, {count, stride_of(product.rows)});
  }
  void sum(const Tensor& products, const int32_t* places, Tensor& y) const {
    STD_CUDA_CHECK(cuda::experts_sum(
        routing, top_k, places, bits(products), static_cast<int>(products.size(1)),
        static_cast<int>(down.rows), mutable_bits(y), bfloat16, early, stream));
  }
};

// What the arguments of both kernels have in common.
template <class Arguments>
void set_product(Arguments& a, const ExpertsProduct& product, const ExpertsWeight& weight,
                 Tensor& to) {
  a.units = words_of(weight.units);
  a.scales = weight.scales;
  a.bias = weight.bias ? bits(*weight.bias) : nullptr;
  a.y = mutable_bits(to);
  a.y_stride = static_cast<int>(to.size(1));
  a.rows = static_cast<int>(product.rows);
  a.cols = static_cast<int>(product.cols);
}

void multiply_few(const Layer& layer, const Launches<FewExperts>& plans, OrderTensors& order,
                  Tensor& y) {
  experts::Arguments a{};
  a.order = order.data();
  a.slots = layer.routing.slots;
  a.activation = layer.activation;
  const auto multiply = [&](const ExpertsProduct& product, const ExpertsPlan& plan,
                            const ExpertsWeight& weight, const Tensor& from, Tensor& to) {
    set_product(a, product, weight, to);
    a.x = bits(from);
    a.x_stride = static_cast<int>(from.size(1));
    a.weights =
        layer.weights_on_input == product.gated ? layer.weights.const_data_ptr<float>() : nullptr;
    STD_CUDA_CHECK(cuda::sparse_24_experts(a, product, plan, layer.bfloat16, layer.early,
                                           !product.gated, layer.stream));
  };
  Tensor h = layer.rows(a.slots, layer.up), products = layer.rows(a.slots, layer.down);
  multiply(layer.up, plans.up, layer.first, layer.x, h);
  multiply(layer.down, plans.down, layer.last, h, products);
  layer.sum(products, nullptr, y);
}

void multiply_many(const Layer& layer, const Launches<ManyExperts>& plans, OrderTensors& order,
                   Tensor& y) {
  const int64_t most = order.slots.size(0);
  Tensor rows = allocate_like(layer.x, {most, layer.x.size(1)});
  Tensor weights = allocate_like(layer.x, {most}, ScalarType::Float);
  Tensor places = allocate_like(layer.x, {layer.routing.slots}, ScalarType::Int);
  const experts::Gather gather{order.data(),
                               bits(layer.x),
                               static_cast<int>(layer.x.size(1)),
                               layer.routing.slots,
                               Divider(static_cast<uint32_t>(layer.top_k)),
                               layer.weights.const_data_ptr<float>(),
                               mutable_bits(rows),
                               weights.mutable_data_ptr<float>(),
                               places.mutable_data_ptr<int32_t>()};
  STD_CUDA_CHECK(cuda::experts_gather(gather, static_cast<int>(most), layer.early, layer.stream));
  experts::WgmmaArguments a{};
  a.order = order.data();
  a.slots = layer.routing.slots;
  a.activation = layer.activation;
  const auto multiply = [&](const ExpertsProduct& product, const ExpertsWgmmaPlan& plan,
                            const ExpertsWeight& weight, const Tensor& from, Tensor& to) {
    set_product(a, product, weight, to);
    a.weights = layer.weights_on_input == product.gated ? weights.const_data_ptr<float>() : nullptr;
    a.gated = product.gated;
    a.cut(plan, product);
    const TiledMatrix map{bits(from), most, product.cols, from.size(1), plan.copied_tokens()};
    STD_CUDA_CHECK(cuda::sparse_24_experts_wgmma(a, map, plan, product.unit, layer.bfloat16,
                                                 layer.early, layer.stream));
  };
  Tensor h = layer.rows(most, layer.up), products = layer.rows(most, layer.down);
  multiply(layer.up, plans.up, layer.first, rows, h);
  multiply(layer.down, plans.down, layer.last, h, products);
  layer.sum(products, places.const_data_ptr<int32_t>(), y);
}

// The kernel of a layer: that of the launch that a benchmark gave, or else the planned one.
bool by_many(const ExpertsProduct& up, const ExpertsProduct& down, const Gpu& gpu) {
  if (given_launch(ManyExperts::kUp) || given_launch(ManyExperts::kDown)) return true;
  if (given_launch(FewExperts::kUp) || given_launch(FewExperts::kDown)) return false;
  return sparse_24::choose_experts_kernel(up, down, gpu) == Kernel::kMany;
}

Tensor sparse_24_experts(const Tensor& x_, const Tensor& topk_ids, const Tensor& topk_weights,
                         const Tensor& w13, const std::optional<Tensor>& w13_scale,
                         const Tensor& w2, const std::optional<Tensor>& w2_scale,
                         int64_t intermediate, ScalarType weight_dtype, const std::string& values,
                         int64_t group, const std::string& activation, double limit, double alpha,
                         const std::optional<Tensor>& w13_bias,
                         const std::optional<Tensor>& w2_bias,
                         const std::optional<Tensor>& expert_map, bool weights_on_input) {
  check_weight_dtype(weight_dtype);
  check_on_cuda(w13, "w13");
  check_on_cuda(x_, "x");
  FS_CHECK(x_.dim() == 2 && x_.scalar_type() == weight_dtype,
           "x must be [tokens, hidden], in the dtype of the weight");
  check_units(w13, "w13", x_);
  check_units(w2, "w2", x_);
  check_beside(topk_ids, "topk_ids", x_, "x");
  check_beside(topk_weights, "topk_weights", x_, "x");
  const int64_t tokens = x_.size(0), hidden = x_.size(1), local = w13.size(0);
  check_shape(hidden, intermediate);
  const experts::Routing routing = routing_of(topk_ids, local, expert_map);
  const int64_t top_k = topk_ids.size(1);
  FS_CHECK(topk_ids.size(0) == tokens && topk_weights.dim() == 2 &&
               topk_weights.size(0) == tokens && topk_weights.size(1) == top_k,
           "topk_ids and topk_weights must be [", tokens, ", top_k]");
  const sparse_24::UnitLayout unit = sparse_24_layout(values, group);
  const ExpertsProduct up{intermediate, hidden, true, tokens, top_k, local, unit};
  const ExpertsProduct down{hidden, intermediate, false, tokens, top_k, local, unit};
  const ExpertsWeight first("w13", w13, w13_scale, w13_bias, x_, up);
  const ExpertsWeight last("w2", w2, w2_scale, w2_bias, x_, down);
  const experts::Activation own_activation = activation_of(activation, limit, alpha);
  const torch::stable::accelerator::DeviceGuard guard(x_.get_device_index());
  Tensor y = allocate_like(x_, {tokens, hidden});
  if (tokens == 0) return y;

  const Gpu gpu = gpu_of(x_);
  const Tensor x = aligned_rows(as_contiguous(x_), 8);
  const Tensor weights = as_contiguous(in_dtype(topk_weights, ScalarType::Float));
  const Layer layer{routing,
                    static_cast<int>(top_k),
                    up,
                    down,
                    first,
                    last,
                    own_activation,
                    x,
                    weights,
                    weights_on_input,
                    weight_dtype == ScalarType::BFloat16,
                    gpu.has_dependent_launch(),
                    current_stream(x)};
  const auto multiply = [&](const auto& plans, const auto& by_kernel) {
    OrderTensors order(topk_ids, routing, plans.block_slots());
    STD_CUDA_CHECK(cuda::experts_order(routing, order.data(), plans.block_slots(), layer.stream));
    by_kernel(layer, plans, order, y);
  };
  if (by_many(up, down, gpu)) {
    multiply(Launches<ManyExperts>(up, down, gpu), multiply_many);
  } else {
    multiply(Launches<FewExperts>(up, down, gpu), multiply_few);
  }
  return y;
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CUDA, m) {
  m.impl("sparse_24_experts", TORCH_BOX(&sparse_24_experts));
}

}  // namespace
}  // namespace flashsparse
