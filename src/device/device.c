#include "device/device.h"

#include "base/config.h"
#include "device/vendor.h"

#include <ctype.h>
#include <string.h>
#include <unistd.h>

static const gbi_vendor_driver *const drivers[GBI_VENDORS] = {&gbi_cuda_driver,
                                                              &gbi_hip_driver};

const char *gbi_vendor_name(gbi_vendor vendor) {
  static const char *const names[GBI_VENDORS] = {"nvidia", "amd"};
  return (unsigned)vendor < GBI_VENDORS ? names[vendor] : "unknown vendor";
}

/* ---- opening ---- */

static gb_status check_vendor(gbi_vendor vendor, gb_error *error) {
  if ((unsigned)vendor < GBI_VENDORS) return GB_OK;
  return gbi_fail(error, GB_ERR_ARGUMENT, "there is no vendor number %d",
                  (int)vendor);
}

gb_status gbi_device_count(gbi_vendor vendor, int *count_p, const char **way_p,
                           gb_error *error) {
  GBI_TRY(check_vendor(vendor, error));
  return drivers[vendor]->count(count_p, way_p, error);
}

static gb_status no_such_index(gbi_vendor vendor, int index, int count,
                               gb_error *error) {
  char text[1024];
  gbi_text out;
  gbi_text_init(&out, text, sizeof text);
  gbi_text_add(&out, "there is no %s GPU %d: this process sees ",
               gbi_vendor_name(vendor), index);
  if (count)
    gbi_text_add(&out, "%d, numbered from 0", count);
  else
    gbi_text_add(&out, "none");
  const char *const *visible = drivers[vendor]->visible;
  for (int i = 0; visible[i]; i++) {
    char value[256];
    bool set = gbi_env(visible[i], value, sizeof value);
    gbi_text_add(&out, "%s %s is %s%s%s", i ? "," : ".", visible[i],
                 set ? "\"" : "not set", value, set ? "\"" : "");
  }
  return gbi_fail(error, GB_ERR_ARGUMENT, "%s", text);
}

static gb_status check_index(gbi_vendor vendor, int index, gb_error *error) {
  int count;
  GBI_TRY(gbi_device_count(vendor, &count, NULL, error));
  if (index >= 0 && index < count) return GB_OK;
  return no_such_index(vendor, index, count, error);
}

gb_status gbi_device_look(gbi_vendor vendor, int index, gbi_device_facts *facts,
                          gb_error *error) {
  GBI_TRY(check_index(vendor, index, error));
  memset(facts, 0, sizeof *facts);
  return drivers[vendor]->look(index, facts, error);
}

gb_status gbi_device_open(gbi_vendor vendor, int index, gbi_device **device_p,
                          gb_error *error) {
  GBI_TRY(check_index(vendor, index, error));
  return drivers[vendor]->open(index, device_p, error);
}

/* ---- shared by the vendors ---- */

gb_status gbi_vendor_fail(const gbi_vendor_failure *f, gb_status status,
                          gb_error *error) {
  if (!error) return status;
  char text[1024];
  gbi_text out;
  gbi_text_init(&out, text, sizeof text);
  gbi_text_add(&out, "could not %s", f->doing);
  if (f->device)
    gbi_text_add(&out, " on %s GPU %d (%s)", gbi_vendor_name(f->vendor),
                 f->device->index, f->device->facts.name);
  gbi_text_add(&out, ": %s (%d)", f->code_name ? f->code_name : "error",
               f->code);
  if (f->text) gbi_text_add(&out, ", %s", f->text);
  if (f->way_out) gbi_text_add(&out, ". %s", f->way_out);
  return gbi_fail(error, status, "%s", text);
}

void gbi_uuid_text(const uint8_t uuid[16], const char *prefix, char *text,
                   size_t bytes) {
  static const uint8_t none[16];
  gbi_text out;
  gbi_text_init(&out, text, bytes);
  if (!memcmp(uuid, none, sizeof none)) return;
  gbi_text_add(&out, "%s", prefix);
  int digits = 0;
  while (digits < 16 && isxdigit(uuid[digits])) digits++;
  if (digits == 16) {
    gbi_text_add(&out, "%.16s", (const char *)uuid);
    return;
  }
  for (int i = 0; i < 16; i++) {
    bool group = i == 4 || i == 6 || i == 8 || i == 10;
    gbi_text_add(&out, "%s%02x", group ? "-" : "", uuid[i]);
  }
}

void gbi_pci_text(char *text) {
  for (char *at = text; *at; at++) *at = (char)tolower((unsigned char)*at);
  if (strcspn(text, ":") == 8 && !strncmp(text, "0000", 4))
    memmove(text, text + 4, strlen(text + 4) + 1);
}

static size_t page_bytes(void) {
  return (size_t)sysconf(_SC_PAGESIZE);
}

bool gbi_pinned_room(size_t bytes, size_t *room_p) {
  size_t page = page_bytes();
  if (bytes > SIZE_MAX - 2 * page) return false;
  *room_p = (bytes + page - 1) / page * page + page;
  return true;
}

void *gbi_pinned_place(void *whole, size_t bytes) {
  uintptr_t page = page_bytes();
  uintptr_t host = ((uintptr_t)whole / page + 1) * page;
  ((void **)host)[-1] = whole;
  return memset((void *)host, 0, bytes);
}

void *gbi_pinned_whole(void *host) {
  return ((void **)host)[-1];
}
