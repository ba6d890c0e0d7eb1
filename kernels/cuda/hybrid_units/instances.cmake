# SPDX-License-Identifier: Apache-2.0
instantiate(linear_native linear.cuh "const Compiled* compiled_linear<NativeValues>()")
foreach(type IN LISTS quantized_types)
  set(linear "")
  foreach(group 0 32 64 128) # columns that share a scale; 0: scales of rows
    list(APPEND linear "const Compiled* compiled_linear<${type}Values<${group}>>()")
  endforeach()
  instantiate(linear_${type} linear.cuh ${linear})
endforeach()
