/* core: the job's own settings, and all tables of the library in one list. */
#ifndef GBI_CORE_SETTINGS_H
#define GBI_CORE_SETTINGS_H

#include "base/config.h"
#include "codec/codec.h"

#define GBI_SETTING_TABLES_MAX 16

extern const gbi_setting gbi_core_settings[];
extern const int gbi_core_settings_count;

/* Every table: core, control, net, libraries, each transport's. Returns how
 * many. */
int gbi_settings_tables(const gbi_setting *tables[GBI_SETTING_TABLES_MAX],
                        int counts[GBI_SETTING_TABLES_MAX]);
/* One of the core table; NULL when there is no such name. */
const gbi_setting *gbi_core_setting_find(const char *name);
/* Its number, for settings that discovery has checked. */
int64_t gbi_core_setting(const char *name);
/* GPUBRIDGE_BRIDGE_COMPRESSION; all words for no are GBI_CODEC_NONE. */
gbi_codec gbi_core_codec(void);
/* GPUBRIDGE_COMBINE: 0: on the host; where there are kernels, 1: by them where
 * that pays, 2: by them. */
int gbi_core_combine(void);

#endif
