/* For the check of nccl.h where the CUDA toolkit is not installed: all that it
 * takes of the toolkit. A CUDA runtime stream is a driver stream. */
#include <stddef.h>
typedef struct CUstream_st *cudaStream_t;
typedef struct CUevent_st *cudaEvent_t;
#define CUDART_VERSION 12000
