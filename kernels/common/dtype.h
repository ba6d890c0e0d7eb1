// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace flashsparse {

enum class Dtype { kFloat32, kFloat16, kBFloat16 };

}  // namespace flashsparse
