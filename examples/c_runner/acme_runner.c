/* A runner of a vendor's regions in C. The bytes of a region are one float32 number, and the region
   adds it to its argument:
       cc -shared -fPIC -I HEADERS -o libtvm_byoc_runner_acme.so acme_runner.c
   HEADERS is tvm_byoc_dnnl/lib/include in the installed package. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tvm_byoc_runner.h"

static int32_t check(const char* compatibility, char* message, size_t room) {
  if (strcmp(compatibility, "acme 1") == 0) return TVM_BYOC_FITS;
  snprintf(message, room, "made for %s, and here is acme 1", compatibility);
  return strncmp(compatibility, "acme 1.", 7) == 0 ? TVM_BYOC_WORKS : TVM_BYOC_REFUSED;
}

static int32_t load(const void* data, size_t bytes, const char* options, void** region,
                    char* message, size_t room) {
  if (bytes != sizeof(float) || strstr(options, "\"device\": 9") != NULL) {
    snprintf(message, room, "%zu bytes with the options %s", bytes, options);
    return 1;
  }
  *region = malloc(bytes);
  if (*region == NULL) return 1;
  memcpy(*region, data, bytes);
  return 0;
}

static int32_t run(void* region, const tvm_byoc_tensor* tensors, size_t count, char* message,
                   size_t room) {
  const float* x = (const float*)tensors[0].data;
  float* y = (float*)tensors[count - 1].data;
  int64_t size = 1, i;
  for (i = 0; i < tensors[0].rank; ++i) size *= tensors[0].shape[i];
  for (i = 0; i < size; ++i) {
    if (x[i] > 1000) {
      snprintf(message, room, "the sum is out of range at %d", (int)i);
      return 1;
    }
    y[i] = x[i] + *(const float*)region;
  }
  return 0;
}

static const tvm_byoc_runner runner = {TVM_BYOC_RUNNER_ABI, check, load, run, free};

#ifdef __cplusplus
extern "C"
#endif
    const tvm_byoc_runner* tvm_byoc_blob_runner(void) {
  return &runner;
}
