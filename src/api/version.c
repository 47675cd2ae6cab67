#include <gpubridge/version.h>

const char *gb_version(void) { return GB_VERSION; }
