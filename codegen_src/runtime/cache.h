// SPDX-License-Identifier: Apache-2.0
// Tensors that grow along one axis, in buffers with room for more rows. A tensor is a view of the
// first rows of sequences of a buffer; what it shows never changes, because new rows are written
// behind those of all views, unless the owner of the buffer gives rows back. Sequences of one
// tensor may have different lengths: the rows behind the own end of one belong to nobody, and the
// next rows of the sequence may be written there.
#pragma once

#include <cstdint>
#include <optional>

#include "common/graph.h"
#include "runtime/ffi.h"

namespace tvm_byoc_dnnl {

/// Whether calls of this thread return views of such buffers, whose strides have gaps; returns what
/// it was before. Callers that read results as dense memory get dense copies unless they say so.
bool UseCaches(bool use);

/// Where new rows go: of each sequence, along the first axis, or of all.
struct NewRows {
  Dims starts, ends;
};

/// A tensor of this shape that starts with the rows of `past`; the caller writes the new ones. If
/// they lie behind all rows that the buffer of `past` holds of their sequence and there is room,
/// the result is a view of the same buffer, else of a new one, with a copy. Where this thread does
/// not use caches, or the tensor has no elements, it is dense memory with nothing in it.
ffi::Tensor GrowCache(const DLTensor& past, const Dims& shape, int64_t axis, const NewRows& rows);

/// The rows that the buffer has room for of which a tensor shows the first ones, along this axis; 0
/// if it shows none.
int64_t CacheRows(const DLTensor& tensor, int64_t axis);

/// All of a new buffer, for an owner who has views of its sequences made.
ffi::Tensor NewCache(const ffi::Shape& room, int64_t axis, DLDataType dtype);

/// So many rows of some sequences, for the owner of a whole cache: what else shows further rows of
/// these will not be read any more. Rows that others have more of are 0.
ffi::Tensor ShowCache(const ffi::Tensor& cache, int64_t axis, int64_t first,
                      const ffi::Shape& lengths);

}  // namespace tvm_byoc_dnnl
