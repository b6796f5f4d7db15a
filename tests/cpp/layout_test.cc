// SPDX-License-Identifier: Apache-2.0
#include "dnnl/layout.h"

#include "check.h"

namespace {

using namespace tvm_byoc_dnnl;  // NOLINT: a test of one header

using Tag = dnnl::memory::format_tag;

MemoryDesc Tagged(const Dims& shape, Tag tag) {
  return MemoryDesc(shape, dnnl::memory::data_type::f32, tag);
}

}  // namespace

TEST(Properties) {
  const MemoryDesc dense = Dense({2, 3, 4, 5}, DType::kFloat32);
  const MemoryDesc last = ChannelsLast({2, 3, 4, 5}, DType::kFloat32);
  const MemoryDesc blocked = Tagged({2, 3, 4, 5}, Tag::nChw16c);
  CHECK(IsDense(dense) && !IsDense(last) && !IsDense(blocked));
  CHECK(IsStrided(dense) && IsStrided(last) && !IsStrided(blocked));
  CHECK(last == Tagged({2, 3, 4, 5}, Tag::nhwc));
  CHECK_EQUAL(ToString(last), "f32:acdb:2x3x4x5");
  CHECK_EQUAL(ToString(blocked), "f32:aBcd16b:2x3x4x5");
  CHECK_EQUAL(ToString(AnyLayout({2}, DType::kInt8)), "s8:any:2");
  CHECK_EQUAL(Join(AxisOrder(last)), "[0, 2, 3, 1]");
  CHECK_EQUAL(Dense({}, DType::kFloat32).get_dims().size(), 1u);
}

TEST(LayoutsAgreeUpToAxesOfOne) {
  const MemoryDesc dense = Dense({2, 3, 1, 1}, DType::kFloat32);
  CHECK(SameLayout(dense, ChannelsLast({2, 3, 1, 1}, DType::kFloat32)));
  CHECK(!SameLayout(dense, Dense({2, 3, 1, 1}, DType::kInt32)));
  CHECK(!SameLayout(dense, Tagged({2, 3, 1, 1}, Tag::nChw16c)));
  CHECK(!SameLayout(Dense({2, 3, 4, 1}, DType::kFloat32),
                    ChannelsLast({2, 3, 4, 1}, DType::kFloat32)));
}

TEST(PermuteTakesAxesFromTheSource) {
  const MemoryDesc view = PermuteView(Dense({2, 3, 4}, DType::kFloat32), {2, 0, 1});
  CHECK_EQUAL(Join(view.get_dims()), "[4, 2, 3]");
  CHECK_EQUAL(Join(view.get_strides()), "[1, 12, 4]");
}

TEST(ReshapeIsAViewWhereTheLayoutAllows) {
  const MemoryDesc last = ChannelsLast({2, 6, 4, 5}, DType::kFloat32);
  CHECK(ReshapeView(last, {2, 3, 2, 4, 5}).has_value());
  CHECK(!ReshapeView(last, {2, 120}).has_value());
  CHECK(ReshapeView(Dense({2, 3}, DType::kFloat32), {6}).has_value());
  CHECK(ReshapeView(Dense({0, 3}, DType::kFloat32), {3, 0, 7}).has_value());
  CHECK(!ReshapeView(Tagged({2, 1, 3, 4}, Tag::nChw16c), {6, 4}).has_value());
}

TEST(SlicesOfStrides) {
  std::optional<View> view = SliceView(Dense({4, 10}, DType::kFloat32), {1, 2}, {2, 3}, {2, 3});
  CHECK_EQUAL(view->offset, (10 + 2) * 4);
  CHECK_EQUAL(Join(view->md.get_strides()), "[20, 3]");
  CHECK(!IsCompact(view->md));
}

TEST(SlicesOfBlocks) {
  const MemoryDesc blocked = Tagged({1, 64, 4, 5}, Tag::nChw16c);
  std::optional<View> whole_blocks = SliceView(blocked, {0, 32, 0, 0}, {1, 16, 4, 5}, {1, 1, 1, 1});
  CHECK(whole_blocks.has_value());
  CHECK_EQUAL(whole_blocks->offset, 32 * 4 * 5 * 4);
  CHECK(!SliceView(blocked, {0, 8, 0, 0}, {1, 16, 4, 5}, {1, 1, 1, 1}).has_value());
  CHECK(!SliceView(blocked, {0, 0, 0, 0}, {1, 16, 2, 5}, {1, 1, 2, 1}).has_value());
}

TEST(DtypesWithoutArithmetic) {
  CHECK_THROWS(kUnsupported, "int64", ToDnnl(DType::kInt64));
  CHECK_THROWS(kUnsupported, "float64", Dense({2}, DType::kFloat64));
}
