# SPDX-License-Identifier: Apache-2.0
# Finds nvcc (CUDACXX, PATH, a toolkit in the usual place, or the pip packages of the `toolkit`
# extra) and adds the target _C_cuda. Sets nothing where AUTO finds no compiler.
if(NOT CMAKE_CUDA_COMPILER AND NOT DEFINED ENV{CUDACXX})
  find_program(nvcc_path nvcc
               HINTS ENV CUDA_HOME "${TORCH_ROOT}/../nvidia/cu13" PATH_SUFFIXES bin
               PATHS /usr/local/cuda)
  if(nvcc_path)
    file(REAL_PATH "${nvcc_path}" CMAKE_CUDA_COMPILER)
  endif()
endif()

# The pip toolkit has lib/ where nvcc looks for lib64/.
get_filename_component(toolkit_bin "${CMAKE_CUDA_COMPILER}" DIRECTORY)
if(EXISTS "${toolkit_bin}/../lib/libcudart_static.a" AND NOT EXISTS "${toolkit_bin}/../lib64")
  string(APPEND CMAKE_CUDA_FLAGS_INIT " -L${toolkit_bin}/../lib")
endif()

set(CMAKE_CUDA_ARCHITECTURES ${FLASHSPARSE_CUDA_ARCHS})
set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
include(CheckLanguage)
check_language(CUDA)
if(CMAKE_CUDA_COMPILER)
  enable_language(CUDA)
  set(CMAKE_CUDA_STANDARD 17)
  file(GLOB cuda_sources CONFIGURE_DEPENDS kernels/bindings/cuda*.cpp kernels/cuda/*.cu)
  add_library(_C_cuda MODULE ${cuda_sources})
  target_include_directories(_C_cuda PRIVATE kernels ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
  target_compile_definitions(_C_cuda PRIVATE USE_CUDA)
  target_compile_options(_C_cuda PRIVATE
    $<$<COMPILE_LANGUAGE:CUDA>:--threads=2 -Xptxas=--warn-on-spills,-Werror>
    $<$<COMPILE_LANGUAGE:CXX>:-Wall -Wextra>)
  target_link_libraries(_C_cuda PRIVATE torch_stable)
  list(APPEND objects _C_cuda)
elseif(FLASHSPARSE_CUDA STREQUAL "ON")
  message(FATAL_ERROR "FLASHSPARSE_CUDA=ON, but no nvcc was found. Install a CUDA toolkit or the "
                      "`toolkit` extra (pip install flashsparse-plugin[toolkit]), set CUDACXX, or "
                      "use FLASHSPARSE_CUDA=OFF.")
else()
  message(STATUS "flashsparse: no nvcc found, building the CPU kernels only")
endif()
