/* Ranks of a case that share a host area: barrier, exchange of blobs and an
 * area that is set up already. Uses the first 56 KiB of gb_test_shared(); the
 * rest is the test's (gb_spare). Every rank makes the same calls. */
#ifndef GB_AREA_H
#define GB_AREA_H

#include "base/wire.h"
#include "os/hostarea.h"

enum { GB_AREA_RANKS_MAX = 64, GB_SPARE_BYTES = 8192 };

void gb_meet(void);
/* all[r] reads what rank r handed in, until the next exchange. At most
 * 48 KiB / gb_world() a rank. */
void gb_exchange(const void *mine, size_t bytes, gbi_reader *all);
/* 8 KiB of shared memory, zeroed when the case starts. */
void *gb_spare(void);
extern const gbi_auth gb_area_auth;
/* host[r]: number of rank r's host, NULL: all on one. Connected. */
gbi_hostarea *gb_area_open(const int *host);

#endif
