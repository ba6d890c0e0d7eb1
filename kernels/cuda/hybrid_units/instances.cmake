# SPDX-License-Identifier: Apache-2.0
instantiate(linear_native linear.cuh "const Compiled* compiled_linear<NativeValues>()")
foreach(type IN LISTS quantized_types)
  foreach(group 0 32 64 128) # columns that share a scale; 0: scales of rows
    instantiate(linear_${type}_${group} linear.cuh
                "const Compiled* compiled_linear<${type}Values<${group}>>()")
  endforeach()
endforeach()
