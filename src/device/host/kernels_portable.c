#define KERNELS gbi_kernels_portable
#define KERNELS_NAME "portable"
#define VEC 16
#define TARGET
#include "device/host/kernels.inc.h"
