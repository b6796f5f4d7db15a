/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the emitted program once: weights and inputs from files, outputs to a file. The files hold
   raw tensors, dense and row-major, where program.h says. */
#include <stdio.h>
#include <stdlib.h>

#include "byoc_checksum.h"
#include "program.h"

/* The whole file, which must have exactly this size; NULL after a message. */
static char* read_file(const char* path, size_t bytes) {
  FILE* file = fopen(path, "rb");
  char* data = (char*)malloc(bytes + 1);
  size_t got = file == NULL || data == NULL ? 0 : fread(data, 1, bytes + 1, file);
  if (file == NULL) {
    fprintf(stderr, "%s: cannot be opened\n", path);
  } else if (data == NULL) {
    fprintf(stderr, "%s: out of memory\n", path);
  } else if (got != bytes) {
    fprintf(stderr, "%s: has %s bytes, expected %lu\n", path, got < bytes ? "fewer" : "more",
            (unsigned long)bytes);
  }
  if (file != NULL) fclose(file);
  if (file != NULL && data != NULL && got == bytes) return data;
  free(data);
  return NULL;
}

static int write_file(const char* path, const char* data, size_t bytes) {
  FILE* file = fopen(path, "wb");
  int ok = file != NULL && fwrite(data, 1, bytes, file) == bytes;
  if (file != NULL && fclose(file) != 0) ok = 0;
  if (!ok) fprintf(stderr, "%s: cannot be written\n", path);
  return ok ? 0 : 1;
}

/* Whether the weights are those that were written. */
static int check_weights(const char* path, const char* weights) {
  int i;
  for (i = 0; i < PROGRAM_CONSTANTS; ++i) {
    const program_tensor* t = &kConstants[i];
    if (byoc_checksum(weights + t->offset, t->bytes) == t->checksum) continue;
    fprintf(stderr, "%s: damaged: constant %d has another checksum than when it was written\n",
            path, i);
    return 1;
  }
  return 0;
}

static int run(const char* weights, const char* input, char* output) {
  const void* constants[PROGRAM_CONSTANTS + 1];
  const void* inputs[PROGRAM_INPUTS + 1];
  void* outputs[PROGRAM_OUTPUTS + 1];
  dnnl_byoc_region region;
  char error[BYOC_ERROR_BYTES] = "";
  int i, failed;
  for (i = 0; i < PROGRAM_CONSTANTS; ++i) constants[i] = weights + kConstants[i].offset;
  for (i = 0; i < PROGRAM_INPUTS; ++i) inputs[i] = input + kInputs[i].offset;
  for (i = 0; i < PROGRAM_OUTPUTS; ++i) outputs[i] = output + kOutputs[i].offset;
  failed = PROGRAM_CREATE(&region, constants);
  if (failed) {
    fprintf(stderr, "%s\n", region.plan.error);
  } else {
    failed = dnnl_byoc_run(&region, inputs, outputs, error);
    if (failed) fprintf(stderr, "%s\n", error);
  }
  dnnl_byoc_destroy(&region);
  return failed;
}

int main(int argc, char** argv) {
  char *weights, *input, *output;
  int failed = 1;
  if (argc != 4) {
    fprintf(stderr, "usage: %s weights.bin input.bin output.bin\n", argv[0]);
    return 2;
  }
  weights = read_file(argv[1], PROGRAM_WEIGHT_BYTES);
  input = weights == NULL ? NULL : read_file(argv[2], PROGRAM_INPUT_BYTES);
  output = (char*)calloc(1, PROGRAM_OUTPUT_BYTES + 1);
  if (weights != NULL && input != NULL && output != NULL && check_weights(argv[1], weights) == 0) {
    failed = run(weights, input, output);
    if (!failed) failed = write_file(argv[3], output, PROGRAM_OUTPUT_BYTES);
  }
  free(weights);
  free(input);
  free(output);
  return failed;
}
