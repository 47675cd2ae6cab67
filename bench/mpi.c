/* All_reduce of MPI, for comparison; the same figures as job_bench's. Compiled
 * by bench/run when mpicc is there. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double cpu_us(void) {
  struct timespec t;
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
  return (double)t.tv_sec * 1e6 + (double)t.tv_nsec / 1e3;
}

static int calls_of(size_t bytes) {
  if (bytes <= 4096) return 1000;
  if (bytes <= 65536) return 300;
  if (bytes <= (size_t)1 << 20) return 40;
  return bytes <= (size_t)16 << 20 ? 5 : 2;
}

int main(int argc, char **argv) {
  int rank, world;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &world);
  for (int i = 1; i < argc; i++) {
    size_t bytes = strtoull(argv[i], NULL, 10);
    float *data = malloc(bytes);
    if (!data) return 1;
    memset(data, 0, bytes);
    int calls = calls_of(bytes), count = (int)(bytes / 4);
    for (int k = 0; k < 2; k++)
      MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    MPI_Barrier(MPI_COMM_WORLD);
    double cpu = cpu_us(), wall = MPI_Wtime(), sum;
    for (int k = 0; k < calls; k++)
      MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM,
                    MPI_COMM_WORLD);
    wall = (MPI_Wtime() - wall) / calls * 1e6;
    cpu = (cpu_us() - cpu) / calls;
    MPI_Reduce(&cpu, &sum, 1, MPI_DOUBLE, MPI_SUM, 0, MPI_COMM_WORLD);
    if (!rank)
      printf("{\"bytes\": %zu, \"wall_us\": %.2f, \"cpu_us\": %.2f}\n", bytes,
             wall, sum / world);
    free(data);
  }
  MPI_Finalize();
  return 0;
}
