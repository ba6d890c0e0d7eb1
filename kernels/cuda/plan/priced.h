// SPDX-License-Identifier: Apache-2.0
// What the headers of plans say of the search (search.h). Kernels include those headers, for their
// shapes: with the search's std::mutex nvcc would take a second more for each of their files.
#pragma once
#include <vector>

namespace flashsparse {

template <class Launch>
struct Priced {
  Launch launch;
  double cost;
};

}  // namespace flashsparse
