/* device: what device.c and the two vendors share. */
#ifndef GBI_DEVICE_VENDOR_H
#define GBI_DEVICE_VENDOR_H

#include "device/device.h"

/* One for each vendor, behind the functions of device.h. */
typedef struct gbi_vendor_driver {
  const char *const *visible; /* variables that hide devices, NULL at the end */
  gb_status (*count)(int *count_p, const char **way_p, gb_error *error);
  /* `index` is one of the counted. */
  gb_status (*look)(int index, gbi_device_facts *facts, gb_error *error);
  gb_status (*open)(int index, gbi_device **device_p, gb_error *error);
} gbi_vendor_driver;
extern const gbi_vendor_driver gbi_cuda_driver, gbi_hip_driver;

/* A failed call of a vendor's: "could not DOING on nvidia GPU 0 (NAME):
 * CODE_NAME (CODE): TEXT. WAY_OUT". */
typedef struct gbi_vendor_failure {
  gbi_vendor vendor;
  const gbi_device *device; /* NULL: none in particular */
  const char *doing;
  const char *code_name, *text; /* the vendor's own words, may be NULL */
  int code;
  const char *way_out; /* may be NULL */
} gbi_vendor_failure;
gb_status gbi_vendor_fail(const gbi_vendor_failure *failure, gb_status status,
                          gb_error *error);

/* "GPU-" or another prefix, then the usual groups; a text that is hexadecimal
 * already (AMD's) as it is; "" when all bytes are 0. */
void gbi_uuid_text(const uint8_t uuid[16], const char *prefix, char *text,
                   size_t bytes);
/* "00000000:65:00.0", "0000:65:00.0", any case, to the form of
 * gbi_device_facts, in place. */
void gbi_pci_text(char *text);

/* Runtimes give pinned memory of any alignment. A page more is asked for, the
 * user's part starts at the next page, and the word before it says where the
 * whole begins. */
bool gbi_pinned_room(size_t bytes, size_t *room_p);
void *gbi_pinned_place(void *whole, size_t bytes); /* zeroed */
void *gbi_pinned_whole(void *host);

#endif
