/* Sums one number per rank over all islands. Build it against the installed
 * library:
 *
 *   cc all_reduce.c $(pkg-config --cflags --libs gpubridge) -o all_reduce
 *   gpubridge run --islands nvidia:2,amd:2 -- ./all_reduce
 *
 * It also runs under torchrun, in one job with a PyTorch script. */
#include <gpubridge/gpubridge.h>
#include <stdio.h>

int main(void) {
  gb_job_params params = GB_JOB_PARAMS_INIT;
  params.timeout_ms = 60000;
  gb_job *job;
  gb_error error;
  if (gb_job_open(&params, &job, &error) != GB_OK) {
    fprintf(stderr, "could not join: %s\n", error.text);
    return 1;
  }
  gb_job_info info = {.size = sizeof info};
  if (gb_job_get_info(job, &info) != GB_OK) return 1;
  float value = (float)(info.rank + 1);
  gb_buffer buffer = {&value, 1, GB_FLOAT32};
  gb_status status =
      gb_all_reduce(gb_job_world(job), &buffer, GB_SUM, NULL, &error);
  if (status == GB_OK)
    printf("rank %d of %d, %s: the sum is %g over bridge %s\n", info.rank,
           info.world_size, info.vendor, value, info.bridge);
  else
    fprintf(stderr, "could not reduce: %s\n", error.text);
  if (gb_job_close(job, &error) != GB_OK)
    fprintf(stderr, "could not leave: %s\n", error.text);
  return status == GB_OK ? 0 : 1;
}
