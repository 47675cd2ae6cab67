#include "core/shared.h"

#include "base/memory.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PAGE_BYTES = 4096, WHY_BYTES = 256 };
#define BYTES_MAX (UINT64_C(1) << 40)

/* A member's area, as it said and as this process has it. */
typedef struct area {
  uint64_t offset, bytes; /* 0 bytes: it offers none */
  void *data;             /* NULL: not mapped */
  bool adopted;
} area;

struct gbi_shared {
  gbi_device *device;
  gbi_hostarea *host;
  int count, me;
  uint64_t bytes; /* of the smallest */
  bool mapped;    /* all members were asked to */
  char who[128], why[WHY_BYTES];
  area areas[GBI_SHARED_MEMBERS_MAX];
};

/* Of a window of the host area: an area and the page behind it. */
static uint64_t window_bytes(const area *a) {
  return a->bytes + PAGE_BYTES;
}

static _Atomic uint64_t *given_up(const area *a) {
  return (_Atomic uint64_t *)(void *)((uint8_t *)a->data + a->bytes);
}

/* The first reason is the one that counts. */
static void refuse(gbi_shared *s, const char *who, const char *why) {
  if (s->why[0]) return;
  gbi_text text;
  gbi_text_init(&text, s->why, sizeof s->why);
  gbi_text_add(&text, "%s: %s", who, why);
}

static gb_status adopt(gbi_shared *s, area *a, gb_error *error) {
  void *address;
  GBI_TRY(s->device->ops->adopt(s->device, a->data, a->bytes, &address, error));
  a->adopted = true;
  return GB_OK;
}

/* ---- set-up ---- */

static void make_area(gbi_shared *s, uint64_t bytes) {
  gb_error error;
  area *mine = &s->areas[s->me];
  mine->bytes = bytes;
  gb_status status =
      gbi_hostarea_alloc(s->host, window_bytes(mine), &mine->offset, &error);
  if (status == GB_OK)
    status = gbi_hostarea_map(s->host, mine->offset, window_bytes(mine),
                              &mine->data, &error);
  if (status == GB_OK) status = adopt(s, mine, &error);
  if (status != GB_OK) refuse(s, s->who, error.text);
}

gbi_shared *gbi_shared_open(const gbi_shared_params *params) {
  gbi_shared *s = gbi_calloc(1, sizeof *s);
  if (!s) return NULL;
  s->device = params->device;
  s->host = params->area;
  s->count = params->members_count;
  s->me = params->me;
  snprintf(s->who, sizeof s->who, "%s", params->who);
  if (params->why)
    snprintf(s->why, sizeof s->why, "%s", params->why);
  else if (s->count > GBI_SHARED_MEMBERS_MAX)
    refuse(s, s->who, "too many ranks meet on the bridge");
  else if (!params->bytes)
    refuse(s, s->who, "GPUBRIDGE_SHARED_STAGING_BYTES is 0");
  else
    make_area(s, GBI_MAX(params->bytes / PAGE_BYTES, 1) * PAGE_BYTES);
  return s;
}

/* An offer:
 *   0   bytes   8  of the area, 0: none
 *   8   offset  8  in the host area
 *   16  why     text, "" with an area */
void gbi_shared_offer(const gbi_shared *s, gbi_writer *out) {
  bool none = s->why[0];
  gbi_put_u64(out, none ? 0 : s->areas[s->me].bytes);
  gbi_put_u64(out, none ? 0 : s->areas[s->me].offset);
  gbi_put_text(out, s->why);
}

gb_status gbi_shared_hear_offer(gbi_shared *s, int member, gbi_reader *in,
                                gb_error *error) {
  char why[WHY_BYTES];
  uint64_t bytes = gbi_get_u64(in), offset = gbi_get_u64(in);
  gbi_get_text(in, why, sizeof why);
  if (in->bad || bytes > BYTES_MAX || bytes % PAGE_BYTES || !bytes != !!why[0])
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "member %d of the bridge sent a malformed offer of memory",
                    member);
  /* They have named themselves. */
  if (!bytes && !s->why[0]) snprintf(s->why, sizeof s->why, "%s", why);
  if (member == s->me || member >= GBI_SHARED_MEMBERS_MAX) return GB_OK;
  s->areas[member].bytes = bytes;
  s->areas[member].offset = offset;
  return GB_OK;
}

void gbi_shared_map(gbi_shared *s) {
  if (s->why[0]) return;
  s->mapped = true;
  s->bytes = s->areas[s->me].bytes;
  for (int i = 0; i < s->count && !s->why[0]; i++) {
    area *a = &s->areas[i];
    gb_error error;
    s->bytes = GBI_MIN(s->bytes, a->bytes);
    if (i == s->me) continue;
    gb_status status =
        gbi_hostarea_map(s->host, a->offset, window_bytes(a), &a->data, &error);
    if (status == GB_OK) status = adopt(s, a, &error);
    if (status != GB_OK) refuse(s, s->who, error.text);
  }
}

/* A verdict: why not, "": it is there. */
void gbi_shared_verdict(const gbi_shared *s, gbi_writer *out) {
  gbi_put_text(out, s->why);
}

gb_status gbi_shared_hear_verdict(gbi_shared *s, int member, gbi_reader *in,
                                  gb_error *error) {
  char why[WHY_BYTES];
  gbi_get_text(in, why, sizeof why);
  if (in->bad)
    return gbi_fail(error, GB_ERR_PROTOCOL,
                    "member %d of the bridge sent a malformed word on memory",
                    member);
  if (why[0] && !s->why[0]) snprintf(s->why, sizeof s->why, "%s", why);
  return GB_OK;
}

/* Who could not map an area never leaves it: then it stays until the job ends,
 * which costs memory and nothing else. */
static void leave_all(gbi_shared *s) {
  for (int i = 0; i < s->count && i < GBI_SHARED_MEMBERS_MAX; i++) {
    area *a = &s->areas[i];
    if (a->adopted) s->device->ops->unadopt(s->device, a->data);
    gbi_hostarea_leave(s->host, a->data, a->offset, window_bytes(a),
                       s->mapped ? s->count : 1);
    a->adopted = false;
    a->data = NULL;
  }
}

uint64_t gbi_shared_settle(gbi_shared *s) {
  if (!s->why[0]) return s->bytes;
  leave_all(s);
  return 0;
}

const char *gbi_shared_why(const gbi_shared *s) {
  return s->why;
}

uint8_t *gbi_shared_at(const gbi_shared *s, int member) {
  return s->areas[member].data;
}

void gbi_shared_give_up(gbi_shared *s) {
  if (s->areas[s->me].data)
    atomic_store_explicit(given_up(&s->areas[s->me]), 1, memory_order_release);
}

gb_status gbi_shared_check(const gbi_shared *s, gb_error *error) {
  for (int i = 0; i < s->count && i < GBI_SHARED_MEMBERS_MAX; i++) {
    const area *a = &s->areas[i];
    if (!a->data || !atomic_load_explicit(given_up(a), memory_order_acquire))
      continue;
    return gbi_fail(error, GB_ERR_PEER,
                    "member %d of the bridge has given up, and its memory "
                    "means nothing",
                    i);
  }
  return GB_OK;
}

void gbi_shared_close(gbi_shared *s) {
  if (!s) return;
  leave_all(s);
  free(s);
}
