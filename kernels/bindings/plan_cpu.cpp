// SPDX-License-Identifier: Apache-2.0
// The ops that ask how a product on a GPU would be launched, and how long it should take; of any
// GPU, on any machine. Their face is flashsparse_plugin/ops/plan.py.
#include <cstring>
#include <string>
#include <tuple>
#include <vector>

#include "bindings/plan.h"
#include "bindings/torch_stable.h"

namespace flashsparse {
namespace {

using planning::Format;
using planning::Launch;
using planning::Planner;
using planning::Product;

const std::vector<Format>& formats() {
  static const std::vector<Format> all{planning::dense_planners(),
                                       planning::exact_units_planners(),
                                       planning::hybrid_units_planners(),
                                       planning::nm_gather_planners(),
                                       planning::nm_spmm_planners(),
                                       planning::sparse_24_planners(),
                                       planning::tiled_csl_planners(),
                                       planning::tiled_bitmap_planners(),
                                       planning::sparse_24_experts_planners()};
  return all;
}

// sizes: rows, cols, tokens, nbytes, n, m, vector_length, group, experts, top_k.
Product product_of(const std::vector<int64_t>& sizes, const std::string& values, bool quantizes_x) {
  FS_CHECK(sizes.size() == 10, "a product has 10 sizes, not ", sizes.size());
  const Product product{sizes[0], sizes[1], sizes[2], sizes[3],    sizes[4], sizes[5],
                        sizes[6], sizes[7], values,   quantizes_x, sizes[8], sizes[9]};
  FS_CHECK(product.rows >= 1 && product.cols >= 1 && product.tokens >= 1,
           "a product has a row, a column and a token at least");
  FS_CHECK(std::max({product.rows, product.cols, product.tokens}) < INT32_MAX,
           "a product has fewer than 2^31 rows, columns and tokens");
  return product;
}

// gpu: major, minor, multiprocessors; then bytes a second by the clock and width of the memory, and
// as kernels read from memory and from L2; clocks and operations a second.
Gpu gpu_from(const std::vector<double>& gpu) {
  FS_CHECK(gpu.size() == 8, "a GPU has 8 numbers, not ", gpu.size());
  const int major = static_cast<int>(gpu[0]), minor = static_cast<int>(gpu[1]);
  FS_CHECK(gpu[2] >= 1 && gpu[4] > 0 && gpu[5] > 0 && gpu[6] > 0 && gpu[7] > 0,
           "a GPU has multiprocessors, and its rates are above 0");
  return {static_cast<int>(gpu[2]),
          shared_bytes_of(major, minor),
          major,
          minor,
          gpu[3] / 1e6,
          gpu[4] / 1e6,
          gpu[5] / 1e6,
          gpu[6] / 1e6,
          gpu[7] / 1e6};
}

std::vector<double> numbers_of(const Gpu& gpu) {
  return {double(gpu.major), double(gpu.minor),   double(gpu.multiprocessors),
          gpu.bus * 1e6,     gpu.memory * 1e6,    gpu.l2 * 1e6,
          gpu.clock * 1e6,   gpu.arithmetic * 1e6};
}

std::string known_gpus() {
  std::string names;
  for (const NamedGpu& known : kGpus) names += std::string(names.empty() ? "" : " ") + known.name;
  return names;
}

std::vector<double> known_gpu(const std::string& name) {
  for (const NamedGpu& known : kGpus) {
    if (name == known.name) return numbers_of(known.gpu);
  }
  fail("no rates are known of a GPU ", name);
}

const Planner& planner_of(const std::string& kernel) {
  for (const Format& format : formats()) {
    for (const Planner& planner : format.planners) {
      if (kernel == planner.kernel) return planner;
    }
  }
  fail("there is no planner for a kernel ", kernel);
}

// The same for a product: "<format>.sparse" is the one of several sparse kernels that the op takes.
const Planner& planner_of(const std::string& kernel, const Product& product, const Gpu& gpu) {
  for (const Format& format : formats()) {
    if (format.choose == nullptr || kernel != std::string(format.name) + ".sparse") continue;
    const Kernel chosen = format.choose(product, gpu, {INT32_MAX, {}});
    FS_CHECK(chosen != Kernel::kUnpacked, format.name, " has no kernel for a [", product.rows, ", ",
             product.cols, "] weight");
    return planner_of(std::string(format.name) + "." + name_of(chosen));
  }
  return planner_of(kernel);
}

std::string launch_fields(const std::string& kernel) { return planner_of(kernel).fields; }

// The names of a compiled shape's numbers, and those of all shapes, one after the other.
std::tuple<std::string, std::vector<int64_t>> compiled_shapes(const std::string& kernel) {
  const planning::Shapes shapes = planner_of(kernel).shapes();
  std::vector<int64_t> numbers;
  for (const auto& each : shapes.all) numbers.insert(numbers.end(), each.begin(), each.end());
  return {shapes.fields, numbers};
}

std::string choose_kernel(const std::string& format, const std::vector<int64_t>& sizes,
                          const std::string& values, bool quantizes_x,
                          const std::vector<double>& gpu) {
  for (const Format& known : formats()) {
    if (format == known.name && known.choose != nullptr)
      return name_of(known.choose(product_of(sizes, values, quantizes_x), gpu_from(gpu), {}));
  }
  fail("there is no choice of kernels for a format ", format);
}

std::tuple<std::vector<int64_t>, double> plan(const std::string& kernel,
                                              const std::vector<int64_t>& sizes,
                                              const std::string& values, bool quantizes_x,
                                              const std::vector<double>& gpu) {
  const Product product = product_of(sizes, values, quantizes_x);
  const Gpu own = gpu_from(gpu);
  const Launch found = planner_of(kernel, product, own).plan(product, own);
  return {found.numbers, found.microseconds};
}

// The numbers of all launches, one after the other.
std::tuple<std::vector<int64_t>, std::vector<double>> candidates(const std::string& kernel,
                                                                 const std::vector<int64_t>& sizes,
                                                                 const std::string& values,
                                                                 bool quantizes_x,
                                                                 const std::vector<double>& gpu) {
  std::vector<int64_t> numbers;
  std::vector<double> microseconds;
  for (const Launch& each :
       planner_of(kernel).candidates(product_of(sizes, values, quantizes_x), gpu_from(gpu))) {
    numbers.insert(numbers.end(), each.numbers.begin(), each.numbers.end());
    microseconds.push_back(each.microseconds);
  }
  return {numbers, microseconds};
}

STABLE_TORCH_LIBRARY_FRAGMENT(flashsparse, m) {
  m.def("known_gpus() -> str");
  m.def("known_gpu(str name) -> float[]");
  m.def("launch_fields(str kernel) -> str");
  m.def("compiled_shapes(str kernel) -> (str, int[])");
  m.def("choose_kernel(str format, int[] sizes, str values, bool quantizes_x, float[] gpu) -> str");
  m.def(
      "plan(str kernel, int[] sizes, str values, bool quantizes_x, float[] gpu) -> (int[], float)");
  m.def(
      "candidates(str kernel, int[] sizes, str values, bool quantizes_x, float[] gpu) "
      "-> (int[], float[])");
}

STABLE_TORCH_LIBRARY_IMPL(flashsparse, CompositeExplicitAutograd, m) {
  m.impl("known_gpus", TORCH_BOX(&known_gpus));
  m.impl("known_gpu", TORCH_BOX(&known_gpu));
  m.impl("launch_fields", TORCH_BOX(&launch_fields));
  m.impl("compiled_shapes", TORCH_BOX(&compiled_shapes));
  m.impl("choose_kernel", TORCH_BOX(&choose_kernel));
  m.impl("plan", TORCH_BOX(&plan));
  m.impl("candidates", TORCH_BOX(&candidates));
}

}  // namespace
}  // namespace flashsparse
