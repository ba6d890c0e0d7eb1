// SPDX-License-Identifier: Apache-2.0
// All inner kernels of an instruction set, for the source that includes this.
#pragma once
#include "cpu/cpu_panels/hybrid_product.h"
#include "cpu/cpu_panels/panels_product.h"
#include "cpu/cpu_panels/rows_product.h"

namespace {

constexpr flashsparse::cpu_panels::Kernels kTable = {
    widen_all, kPanelsTokens, kRowsTokens, multiply_panels, multiply_rows, multiply_hybrid};

}  // namespace
