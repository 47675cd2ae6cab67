/* Nothing of it is used: see cuda_runtime.h. */
