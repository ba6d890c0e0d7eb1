// SPDX-License-Identifier: Apache-2.0
// nm_panels: the form in which nm_vector runs on a CPU where 16 rows or more share their columns.
// Never on disk.
//
//   values   uint16 or uint32 [panels][kept][16]   entry j of 16 rows, side by side: a register
//   columns  int32 [groups][kept]                  the column of entry j, for all rows of a group
//
// One entry is one load of 16 weights and one fused multiply-add with a broadcast activation for
// each token: nothing is decoded. Entries beyond the weight's edge have column in_features, where
// the kernels keep a zero; rows beyond the edge are zeros.
#pragma once
#include "formats/panel.h"
