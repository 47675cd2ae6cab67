/* gpubridge doctor as users run it: on a machine without a GPU, with fake GPUs
 * of either vendor, with what is broken. What it says and its exit code. */
#include "harness/gb_test.h"

#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

static char said[1 << 16];

/* Exit code; what came out, lines joined, is in `said`. */
static int doctor(const char *options) {
  char command[1024];
  snprintf(command, sizeof command, "%s doctor %s 2>&1", TOOL, options);
  FILE *out = popen(command, "r");
  GB_CHECK(out);
  size_t used = fread(said, 1, sizeof said - 1, out);
  said[used] = 0;
  int status = pclose(out);
  GB_CHECK(WIFEXITED(status));
  return WEXITSTATUS(status);
}

/* Broken lines are one line again. */
static void join(void) {
  char *to = said;
  for (const char *from = said; *from; from++)
    if (*from != ' ' && *from != '\n')
      *to++ = *from;
    else if (to > said && to[-1] != ' ')
      *to++ = ' ';
  *to = 0;
}

static void use(const char *setting, const char *file) {
  if (access(file, R_OK)) gb_test_skip("no %s", file);
  setenv(setting, file, 1);
}

/* Nothing of the machine's own, whatever it has. */
static void hide_all(void) {
  static const char *const settings[] = {
      "GPUBRIDGE_CUDA_LIB", "GPUBRIDGE_NCCL_LIB", "GPUBRIDGE_NVRTC_LIB",
      "GPUBRIDGE_HIP_LIB",  "GPUBRIDGE_RCCL_LIB", "GPUBRIDGE_HIPRTC_LIB"};
  for (size_t i = 0; i < sizeof settings / sizeof *settings; i++)
    setenv(settings[i], "/nowhere/lib.so", 1);
}

GB_TEST(doctor, no_gpu) {
  hide_all();
  GB_CHECK_INT(doctor(""), 0);
  for (const char *line = said; *line;) { /* fits a terminal */
    int length = (int)strcspn(line, "\n");
    GB_CHECK(length <= 80 && (!length || line[length - 1] != ' '));
    line += length + (line[length] == '\n');
  }
  join();
  static const char *const parts[] = {"nvidia CUDA driver",
                                      "NCCL",
                                      "NVRTC",
                                      "amd HIP runtime",
                                      "RCCL",
                                      "HIPRTC",
                                      "kernels in",
                                      "locked memory",
                                      "settings well formed",
                                      "a job can run on CPU here, on no GPU"};
  for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
    GB_CHECK_TEXT(said, parts[i]);
  GB_CHECK_INT(doctor("--need gpu"), 1);
  GB_CHECK_INT(doctor("--need nvidia"), 1);
  GB_CHECK_INT(doctor("--need amd"), 1);
}

GB_TEST(doctor, kernels) {
  hide_all();
  use("GPUBRIDGE_CUDA_LIB", FAKES "/cuda/libcuda.so.1");
  setenv("GPUBRIDGE_CACHE_DIR", "/proc/none", 1);
  (void)doctor("");
  join();
  GB_CHECK_TEXT(said, "no kernels of our own: some reductions are refused");
  GB_CHECK_TEXT(said, "kernels in /proc/none");
  use("GPUBRIDGE_NVRTC_LIB", FAKES "/cuda/libnvrtc.so.13");
  (void)doctor("");
  join();
  GB_CHECK_TEXT(said, "NVRTC 13.0, " FAKES);
  GB_CHECK_TEXT(said, "kernels of our own: ready after");
  setenv("GPUBRIDGE_KERNELS", "off", 1);
  (void)doctor("");
  join();
  GB_CHECK_TEXT(said, "GPUBRIDGE_KERNELS is off");
}

GB_TEST(doctor, says_what_was_looked_for) {
  hide_all();
  unsetenv("GPUBRIDGE_NVRTC_LIB");
  setenv("LD_LIBRARY_PATH", "/nowhere", 1);
  (void)doctor("--look");
  join();
  GB_CHECK_TEXT(said, "NVRTC");
  GB_CHECK_TEXT(said,
                "could not be loaded from /nowhere/lib.so, which "
                "GPUBRIDGE_CUDA_LIB names");
}

GB_TEST(doctor, nvidia_gpus) {
  hide_all();
  use("GPUBRIDGE_CUDA_LIB", FAKES "/cuda/libcuda.so.1");
  setenv("FAKE_GPU_DEVICES", "2", 1);
  GB_CHECK_INT(doctor(""), 0);
  join();
  GB_CHECK_TEXT(said, "CUDA driver CUDA 12.");
  GB_CHECK_TEXT(said, "GPU 1 ");
  GB_CHECK_TEXT(said, "16 MiB there and back");
  GB_CHECK_TEXT(said, "nvidia GPUs work, but a job needs NCCL");
  GB_CHECK_INT(doctor("--need nvidia"), 1);
  /* Any library with a number does for the rest. */
  use("GPUBRIDGE_NCCL_LIB", FINDING "/loader/libgbfind.so.2");
  GB_CHECK_INT(doctor("--need nvidia"), 0);
  join();
  GB_CHECK_TEXT(said, "NCCL version unknown, " FINDING);
  GB_CHECK_TEXT(said, "a job can run on CPU here, and on 2 nvidia GPUs");
  GB_CHECK_INT(doctor("--need amd"), 1);
}

GB_TEST(doctor, both_vendors) {
  hide_all();
  use("GPUBRIDGE_CUDA_LIB", FAKES "/cuda/libcuda.so.1");
  use("GPUBRIDGE_HIP_LIB", FAKES "/hip/libamdhip64.so.6");
  use("GPUBRIDGE_NCCL_LIB", FINDING "/loader/libgbfind.so.2");
  use("GPUBRIDGE_RCCL_LIB", FINDING "/other/libgbfind.so.2");
  GB_CHECK_INT(doctor("--need gpu"), 0);
  join();
  GB_CHECK_TEXT(said, "HIP runtime 6.");
  GB_CHECK_TEXT(said, "gfx");
  GB_CHECK_TEXT(said, "and on 1 nvidia GPU and 1 amd GPU");
}

GB_TEST(doctor, real_names_of_the_fakes) {
  hide_all();
  use("GPUBRIDGE_CUDA_LIB", FAKES "/cuda/libcuda.so.1");
  use("GPUBRIDGE_NCCL_LIB", FAKES "/cuda/libnccl.so.2");
  setenv("FAKE_NCCL_VERSION", "22703", 1);
  GB_CHECK_INT(doctor("--need nvidia"), 0);
  join();
  GB_CHECK_TEXT(said, "NCCL 2.27.3, ");
}

GB_TEST(doctor, a_gpu_that_does_not_work) {
  hide_all();
  use("GPUBRIDGE_CUDA_LIB", FAKES "/cuda/libcuda.so.1");
  use("GPUBRIDGE_NCCL_LIB", FINDING "/loader/libgbfind.so.2");
  setenv("FAKE_GPU_FAIL", "cuMemcpyDtoHAsync_v2:1:700", 1);
  GB_CHECK_INT(doctor("--need gpu"), 1);
  join();
  GB_CHECK_TEXT(said, "could not copy to the host 16777216 bytes");
  GB_CHECK_TEXT(said, "CUDA_ERROR_ILLEGAL_ADDRESS");
  GB_CHECK_INT(doctor("--look --need gpu"), 0); /* was not tried */
}

GB_TEST(doctor, no_gpu_seen) {
  hide_all();
  use("GPUBRIDGE_CUDA_LIB", FAKES "/cuda/libcuda.so.1");
  setenv("FAKE_GPU_DEVICES", "0", 1);
  GB_CHECK_INT(doctor(""), 0);
  join();
  GB_CHECK_TEXT(said, "GPUs none seen");
  GB_CHECK_TEXT(said, "CUDA_VISIBLE_DEVICES");
}

GB_TEST(doctor, a_bad_setting) {
  hide_all();
  setenv("GPUBRIDGE_WARN_AFTER", "soon", 1);
  GB_CHECK_INT(doctor(""), 1);
  join();
  GB_CHECK_TEXT(said, "GPUBRIDGE_WARN_AFTER is \"soon\"");
  GB_CHECK_TEXT(said, "no job can run here");
}

GB_TEST(doctor, usage) {
  GB_CHECK_INT(doctor("--help"), 0);
  GB_CHECK_TEXT(said, "usage: gpubridge doctor");
  GB_CHECK_INT(doctor("--no-such-option"), 2);
  GB_CHECK_INT(doctor("--need intel"), 2);
  GB_CHECK_INT(doctor("more"), 2);
  GB_CHECK_INT(doctor("--torch /nowhere"), 1);
  GB_CHECK_TEXT(said, "no torch in /nowhere");
}
