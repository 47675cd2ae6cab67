/* api: arguments of the public calls, checked before anything is sent. */
#ifndef GBI_API_CHECK_H
#define GBI_API_CHECK_H

#include "core/group.h"

/* `what` names the buffer in the text; it must fit memory `world` times. */
gb_status gbi_check_buffer(const char *what, const gb_buffer *buffer,
                           int world, gb_error *error);
gb_status gbi_check_redop(gb_redop op, gb_dtype dtype, gb_error *error);
gb_status gbi_check_group(gb_group *group, gb_error *error);
/* `large` holds as many rows like `small` as the group has ranks. */
gb_status gbi_check_pair(const gb_group *group, const char *large_name,
                         const gb_buffer *large, const char *small_name,
                         const gb_buffer *small, gb_error *error);

#endif
