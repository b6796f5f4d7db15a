// SPDX-License-Identifier: Apache-2.0
#include "common/file_identity.h"

#include <sys/stat.h>
#include <unistd.h>

#include <climits>
#include <cstdio>
#include <fstream>
#include <string>

#include "check.h"

namespace {

using tvm_byoc_dnnl::HashIn;
using tvm_byoc_dnnl::IdentityOf;
using tvm_byoc_dnnl::LoadByContent;
using tvm_byoc_dnnl::NameWith;

const std::string& Folder() {
  static const std::string folder = [] {
    std::string made = "file_identity_test." + std::to_string(getpid());
    mkdir(made.c_str(), 0700);
    return made;
  }();
  return folder;
}

std::string Write(const std::string& name, const std::string& content) {
  const std::string path = Folder() + "/" + name;
  std::ofstream(path, std::ios::binary) << content;
  return path;
}

constexpr const char* kSealed = "code, and its record: tvm_byoc_dnnl checksum 1";

}  // namespace

TEST(ANameContainsTheIdentityAndLeadsToTheFile) {
  const std::string path = Write("m.so", kSealed);
  for (uint64_t hash : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}, uint64_t{0x8000000000000001}}) {
    const std::string name = NameWith(path, {hash, true});
    CHECK(HashIn(name) == hash);
    struct stat one, other;
    CHECK(stat(name.c_str(), &one) == 0 && stat(path.c_str(), &other) == 0);
    CHECK_EQUAL(one.st_ino, other.st_ino);
  }
}

TEST(OtherNamesContainNone) {
  for (const char* name : {"", "m.so", "/m.so", "./m.so", "/a/b/c/m.so", "/a.//./m.so"}) {
    CHECK(!HashIn(name));
  }
  // What the loader searches for, and what is too long for one more part, stays as it is.
  CHECK_EQUAL(NameWith("m.so", {5, true}), "m.so");
  const std::string path = Folder() + "/" + std::string(PATH_MAX, 'x');
  CHECK_EQUAL(NameWith(path, {5, true}), path);
}

TEST(AnotherFileOrContentIsAnotherIdentity) {
  const std::string path = Write("m.so", kSealed);
  const auto before = IdentityOf(path);
  CHECK(before && before->sealed);
  CHECK(IdentityOf(path)->hash == before->hash);
  const std::string moved = Write("new.so", kSealed);
  CHECK(IdentityOf(moved)->hash != before->hash);
  Write("m.so", std::string("other ") + kSealed);
  CHECK(IdentityOf(path)->hash != before->hash);
  Write("m.so", "no record");
  CHECK(!IdentityOf(path)->sealed);
}

TEST(WhatIsNoFileHasNone) {
  const std::string pipe = Folder() + "/pipe";
  mkfifo(pipe.c_str(), 0600);
  for (const std::string& path : {pipe, Folder(), Folder() + "/absent", std::string("/dev/zero")}) {
    CHECK(!IdentityOf(path));
  }
}

TEST(AFileThatIsReplacedMeanwhileIsLoadedAgain) {
  const std::string path = Write("m.so", kSealed);
  int loads = 0;
  const std::string name = LoadByContent(path, [&](const std::string& asked) {
    if (++loads == 1) Write("m.so", std::string("new ") + kSealed);
    return asked;
  });
  CHECK_EQUAL(loads, 2);
  CHECK(HashIn(name) == IdentityOf(path)->hash);
  auto replaced = [&](const std::string& asked) {
    Write("m.so", std::to_string(++loads) + kSealed);
    return asked;
  };
  CHECK_THROWS(kArtifact, "replaced again and again", LoadByContent(path, replaced));
}

TEST(Cleanup) {
  for (const char* name : {"m.so", "new.so", "pipe"}) std::remove((Folder() + "/" + name).c_str());
  CHECK(rmdir(Folder().c_str()) == 0);
}
