// SPDX-License-Identifier: Apache-2.0
// The kinds of nodes: all that a portable graph demands of each, in one row. Included several
// times, with another KIND; hence no include guard. An engine has a file of its own for each kind.
//
// KIND(Name, name in portable graphs, least and most inputs of its own, attributes (`?` behind one
//      that may be left out), values of `alg`, rule for shapes, dtypes and attributes)
// In a rule, `c` is the Checker (graph_rules.cc) of one node.

KIND(Convolution, "convolution", 2, 3, "strides dilations pad_begin pad_end alg?",
     "auto bf16x2 direct float32 saturating winograd_2x2", { CheckWindows<WindowOut>(c, 0); })

KIND(Deconvolution, "deconvolution", 2, 3, "strides dilations pad_begin pad_end alg?",
     "auto saturating", { CheckWindows<TransposedOut>(c, -kMaxAttr); })

KIND(Matmul, "matmul", 2, 3, "alg?", "auto bf16x2 float32 saturating", {
  const Dims& src = c.In(0);
  const Dims& weights = c.In(1);
  size_t rank = src.size();
  c.Need(rank >= 2 && weights.size() == rank, "two operands of one rank, at least 2");
  if (!Same(src[rank - 1], weights[rank - 2])) {
    c.Fault("K is ", src[rank - 1], " in the source and ", weights[rank - 2], " in the weights");
  }
  Dims expected = BroadcastShape(c, src, weights, rank - 2);
  expected.push_back(src[rank - 2]);
  expected.push_back(weights[rank - 1]);
  c.NeedOut(expected);
  if (c.HasBias()) {
    c.NeedBroadcast("bias", c.In(2), expected);
    c.Need(c.In(2)[rank - 2] == 1, "a bias […,]1,N");
  }
})

KIND(Pooling, "pooling", 1, 1, "alg kernel strides dilations pad_begin pad_end",
     "max avg_include_padding avg_exclude_padding", {
       NeedWindowRank(c);
       c.NeedList("kernel", c.a.kernel, static_cast<size_t>(c.SpatialRank()), 1);
       NeedWindow(c, 0);
       const Dims& src = c.In(0);
       Dims expected = {src[0], src[1]};
       for (size_t i = 0; i + 2 < src.size(); ++i) {
         expected.push_back(WindowOut(c, src[i + 2], c.a.kernel[i], i));
       }
       c.NeedOut(expected);
     })

KIND(Eltwise, "eltwise", 1, 1, "alg alpha beta", kEltwiseAlgs, { c.NeedOut(c.In(0)); })

KIND(Binary, "binary", 2, 2, "alg", kBinaryAlgs, {
  c.Need(c.In(0).size() == c.In(1).size(), "operands of equal rank");
  c.NeedOut(BroadcastShape(c, c.In(0), c.In(1), c.In(0).size()));
})

KIND(PRelu, "prelu", 2, 2, "", "", {
  c.NeedOut(c.In(0));
  c.NeedBroadcast("weights", c.In(1), c.In(0));
})

KIND(Softmax, "softmax", 1, 1, "alg axis", "accurate log", {
  c.NeedAxis(c.a.axis);
  c.NeedOut(c.In(0));
})

KIND(BatchNormalization, "batch_normalization", 5, kMany, "epsilon", "", {
  c.Need(c.Rank() >= 2, "a source of rank 2 or more");
  Dims expected = c.In(0);
  for (int i = 5; i < c.OwnInputs(); ++i) {  // sources that are joined to the first
    Dims shape = c.In(i);
    c.Need(shape.size() == expected.size(), "sources of equal rank");
    const bool is_known = shape[1] >= 0 && expected[1] >= 0;
    expected[1] = is_known ? c.Sum(expected[1], shape[1]) : kUnknownDim;
    shape[1] = c.In(0)[1];
    c.NeedShape("source apart from its channels", shape, c.In(0));
  }
  for (int i = 1; i < 5; ++i) c.NeedShape("statistics", c.In(i), {expected[1]});
  c.NeedOut(expected);
})

KIND(LayerNormalization, "layer_normalization", 1, 3, "epsilon", "", {
  c.Need(c.Rank() >= 2, "a source of rank 2 or more");
  for (int i = 1; i < c.OwnInputs(); ++i) c.NeedShape("scale and shift", c.In(i), {c.In(0).back()});
  c.NeedOut(c.In(0));
})

KIND(RmsNormalization, "rms_normalization", 1, 2, "epsilon", "", {
  c.Need(c.Rank() >= 2, "a source of rank 2 or more");
  if (c.OwnInputs() > 1) c.NeedShape("scale", c.In(1), {c.In(0).back()});
  for (int i = 0; i < c.OwnInputs(); ++i)
    c.Need(c.InDType(i) == DType::kFloat32, "a source and a scale float32");
  c.Need(c.OutDType() == DType::kFloat32, "an output float32");
  c.NeedOut(c.In(0));
})

KIND(Lrn, "lrn", 1, 1, "alg local_size alpha beta k", "across_channels within_channel", {
  NeedWindowRank(c);
  c.Need(c.a.local_size >= 1 && c.a.local_size < kMaxAttr, "local_size in [1, 2^31)");
  c.NeedOut(c.In(0));
})

KIND(Reduction, "reduction", 1, 1, "alg p epsilon",
     "max min sum mul mean norm_lp_max norm_lp_sum norm_lp_power_p_max norm_lp_power_p_sum", {
       const Dims& out = c.Out();
       c.Need(out.size() == c.In(0).size(), "an output of the source's rank");
       for (size_t i = 0; i < out.size(); ++i) {
         if (out[i] != 1 && !Same(out[i], c.In(0)[i])) {
           c.Fault("output axis ", i, " is ", out[i], ", expected ", c.In(0)[i], " or 1");
         }
       }
     })

KIND(Resampling, "resampling", 1, 1, "alg", "nearest linear", {
  NeedWindowRank(c);
  const Dims& out = c.Out();
  c.Need(out.size() == c.In(0).size(), "an output of the source's rank");
  c.Need(Same(out[0], c.In(0)[0]) && Same(out[1], c.In(0)[1]), "equal N and C");
})

KIND(Concat, "concat", 1, kMany, "axis", "", {
  c.NeedSameElements();
  c.NeedAxis(c.a.axis);
  Dims expected = c.In(0);
  int64_t& total = expected[c.a.axis];
  total = 0;
  for (int i = 0; i < c.OwnInputs(); ++i) {
    Dims shape = c.In(i);
    c.Need(shape.size() == expected.size(), "sources of equal rank");
    int64_t size = shape[c.a.axis];
    total = size < 0 || total < 0 ? kUnknownDim : c.Sum(total, size);
    shape[c.a.axis] = c.In(0)[c.a.axis];
    c.NeedShape("source apart from the axis", shape, c.In(0));
  }
  c.NeedOut(expected);
})

KIND(Shuffle, "shuffle", 1, 1, "axis group_size", "", {
  c.NeedAxis(c.a.axis);
  int64_t size = c.In(0)[c.a.axis];
  c.Need(c.a.group_size >= 1 && (size < 0 || size % c.a.group_size == 0),
         "a group_size that divides the axis");
  c.NeedOut(c.In(0));
  c.NeedSameElements();
})

KIND(Reorder, "reorder", 1, 1, "", "", { c.NeedOut(c.In(0)); })

KIND(Reshape, "reshape", 1, 1, "", "", {
  c.NeedSameElements();
  int64_t from = ElementCount(c.In(0));
  int64_t to = ElementCount(c.Out());
  if (!Same(from, to)) c.Fault("got ", from, " elements, expected ", to);
})

KIND(Permute, "permute", 1, 1, "axes", "", {
  c.NeedSameElements();
  c.NeedList("axes", c.a.axes, c.In(0).size(), 0);
  std::vector<bool> seen(c.In(0).size(), false);
  Dims expected;
  for (int64_t axis : c.a.axes) {
    c.NeedAxis(axis);
    if (seen[axis]) c.Fault("`axes` ", Join(c.a.axes), " is not a permutation");
    seen[axis] = true;
    expected.push_back(c.In(0)[axis]);
  }
  c.NeedOut(expected);
})

KIND(Slice, "slice", 1, 1, "begin steps", "", {
  c.NeedSameElements();
  const Dims& out = c.Out();
  c.NeedList("begin", c.a.begin, c.In(0).size(), 0);
  c.NeedList("steps", c.a.steps, c.In(0).size(), 1);
  c.Need(out.size() == c.In(0).size(), "an output of the source's rank");
  for (size_t i = 0; i < out.size(); ++i) {
    int64_t size = c.In(0)[i];
    if (size < 0 || out[i] <= 0) continue;
    // begin + (out - 1) * step < size, without overflow
    if (c.a.begin[i] >= size || (out[i] - 1) > (size - 1 - c.a.begin[i]) / c.a.steps[i]) {
      c.Fault("axis ", i, " of ", size, " has no ", out[i], " elements from ", c.a.begin[i],
              " in steps of ", c.a.steps[i]);
    }
  }
})

KIND(Expand, "expand", 1, 1, "", "", {
  c.NeedSameElements();
  c.NeedBroadcast("source", c.In(0), c.Out());
})

KIND(Pad, "pad", 1, 1, "pad_begin pad_end value", "", {
  c.NeedSameElements();
  c.NeedList("pad_begin", c.a.pad_begin, c.In(0).size(), 0);
  c.NeedList("pad_end", c.a.pad_end, c.In(0).size(), 0);
  Dims expected = c.In(0);
  for (size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] >= 0) expected[i] += c.a.pad_begin[i] + c.a.pad_end[i];
  }
  c.NeedOut(expected);
})

KIND(Gather, "gather", 2, 2, "alg axis", "checked from_end clip wrap", {
  c.NeedSameElements(/*count=*/1);
  c.NeedAxis(c.a.axis);
  c.Need(c.InDType(1) == DType::kInt32 || c.InDType(1) == DType::kInt64, "indices int32 or int64");
  const Dims& data = c.In(0);
  const Dims& indices = c.In(1);
  Dims expected(data.begin(), data.begin() + c.a.axis);
  expected.insert(expected.end(), indices.begin(), indices.end());
  expected.insert(expected.end(), data.begin() + c.a.axis + 1, data.end());
  c.NeedOut(expected);
  if (data[c.a.axis] == 0 && ElementCount(c.Out()) > 0)
    c.Fault("axis ", c.a.axis, " has no elements to gather");
})

KIND(Lookup, "lookup", 1, 1, "table", "", {
  c.Need(IsByte(c.InDType(0)) && IsByte(c.OutDType()), "a source and an output int8 or uint8");
  c.NeedList("table", c.a.table, 256, c.OutDType() == DType::kInt8 ? -128 : 0);
  const int64_t most = c.OutDType() == DType::kInt8 ? 127 : 255;
  for (int64_t result : c.a.table) {
    if (result > most) c.Fault("`table` has ", result, ", expected at most ", most);
  }
  c.NeedOut(c.In(0));
})

KIND(CompressedMatmul, "compressed_matmul", 3, 4, "alg? group_size scale_bits?", "float32 int8", {
  const Dims& src = c.In(0);
  const Dims& weights = c.In(1);
  const Dims& scales = c.In(2);
  c.Need(src.size() == 2 && weights.size() == 2 && scales.size() == 2,
         "a source [M, K], weights and scales of rank 2");
  c.Need(c.a.group_size >= 8 && c.a.group_size < kMaxAttr && c.a.group_size % 8 == 0,
         "a group_size that is a multiple of 8");
  c.Need(c.a.scale_bits == 16 || c.a.scale_bits == 32, "scale_bits 16 or 32");
  const int64_t depth = scales[1] < 0 ? kUnknownDim : c.Product(scales[1], c.a.group_size);
  if (!Same(src[1], depth))
    c.Fault("K is ", src[1], " in the source and ", depth, " in the scales");
  if (!Same(weights[1], depth) && !Same(weights[1], depth / 2)) {
    c.Fault("there are ", weights[1], " bytes of weights for each of the columns, expected ", depth,
            " (8 bits) or ", depth / 2, " (4 bits)");
  }
  for (int i = 2; i < c.OwnInputs(); ++i) {
    c.NeedShape("scales and zero points", c.In(i), {weights[0], scales[1]});
    c.Need(c.InDType(i) == DType::kFloat32, "scales and zero points float32");
  }
  c.Need(c.InDType(1) == DType::kInt8, "weights int8");
  c.Need(c.InDType(0) == DType::kFloat32 && c.OutDType() == DType::kFloat32,
         "a source and an output float32");
  c.NeedOut({src[0], weights[0]});
})

KIND(Attention, "attention", 3, 4, "alg scale softcap?", "accurate no_nan", {
  const Dims& query = c.In(0);
  const Dims& key = c.In(1);
  const Dims& value = c.In(2);
  const size_t rank = query.size();
  c.Need((rank == 3 || rank == 4) && key.size() == rank && value.size() == rank,
         "queries, keys and values of one rank, 3 or 4");
  Dims keys = {query[0], key[rank - 2], query[rank - 1]};
  Dims values = {query[0], key[rank - 2], value[rank - 1]};
  Dims expected = {query[0], query[rank - 2], value[rank - 1]};
  Dims scores = {query[0], query[rank - 2], key[rank - 2]};
  if (rank == 4) {
    for (Dims* dims : {&keys, &values}) dims->insert(dims->begin() + 1, key[1]);
    for (Dims* dims : {&expected, &scores}) dims->insert(dims->begin() + 1, query[1]);
  }
  c.NeedShape("keys", key, keys);
  c.NeedShape("values", value, values);
  if (c.OwnInputs() == 4) c.NeedBroadcast("bias", c.In(3), scores);
  CheckAttention(c, /*starts=*/-1);
  c.NeedOut(expected);
})

KIND(Append, "append", 4, 4, "", "", {
  c.NeedSameElements(/*count=*/2);
  const Dims& past = c.In(0);
  c.Need(past.size() == 4 && c.Out().size() == 4, "a cache of rank 4");
  Dims rows = past;
  rows[2] = c.In(1).size() == 4 ? c.In(1)[2] : kUnknownDim;
  c.NeedShape("new rows", c.In(1), rows);
  for (int i : {2, 3}) {
    c.NeedShape("starts and ends", c.In(i), {past[0]});
    c.Need(c.InDType(i) == DType::kInt64, "starts and ends int64");
  }
  Dims expected = past;
  expected[2] = c.Out()[2];
  c.NeedOut(expected);
  if (past[2] >= 0 && expected[2] >= 0)
    c.Need(expected[2] >= past[2], "an output of as many rows as the cache has, or more");
})

KIND(Rotary, "rotary", 3, 3, "alg", "halves neighbours", {
  const Dims& src = c.In(0);
  c.Need(src.size() == 4 && c.In(1).size() == 3, "a source of rank 4, and angles of rank 3");
  const int64_t pairs = c.In(1)[2];
  for (int i : {1, 2}) c.NeedBroadcast("cosines and sines", c.In(i), {src[0], src[2], pairs});
  c.Need(c.In(1) == c.In(2), "as many cosines as sines");
  c.Need(pairs < 0 || src[3] < 0 || 2 * pairs <= src[3], "heads of two columns for each pair");
  for (int i = 0; i < c.OwnInputs(); ++i)
    c.Need(c.InDType(i) == DType::kFloat32, "a source and angles float32");
  c.Need(c.OutDType() == DType::kFloat32, "an output float32");
  c.NeedOut(src);
})

KIND(CachedAttention, "cached_attention", 4, 5, "scale window softcap", "", {
  const Dims& query = c.In(0);
  const Dims& key = c.In(1);
  const Dims& value = c.In(2);
  c.Need(query.size() == 4 && key.size() == 4 && value.size() == 4,
         "queries, keys and values of rank 4");
  c.NeedShape("keys", key, {query[0], key[1], key[2], query[3]});
  c.NeedShape("values", value, {query[0], key[1], key[2], value[3]});
  c.NeedShape("starts", c.In(3), {query[0]});
  c.Need(c.InDType(3) == DType::kInt64, "starts int64");
  if (c.OwnInputs() == 5) c.NeedShape("sinks", c.In(4), {query[1]});
  CheckAttention(c, /*starts=*/3);
  c.Need(c.a.window >= 0 && c.a.window < kMaxAttr, "a window of 0 or more");
  c.NeedOut({query[0], query[1], query[2], value[3]});
})

KIND(Recurrent, "recurrent", 3, 9, "alg roles results directions activations alphas? betas? clip?",
     "rnn lstm coupled_lstm gru lbr_gru", { CheckLayer(c); })
