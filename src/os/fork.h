/* What a fork of the process means for the library: the child cannot use the
 * parent's jobs, and holds none of their connections. */
#ifndef GBI_OS_FORK_H
#define GBI_OS_FORK_H

#include "base/base.h"

/* Forks this process descends from. What remembers it at its start knows later
 * whether it is used in a child. */
unsigned gbi_fork_count(void);

/* Children forked from now on close their copy of `fd` at once, so that the
 * connection ends with this process even while they live. Any thread. Numbers
 * above 65,535 are left as they are: heartbeats find the death then. */
void gbi_fork_closes(int fd);
/* Before `fd` is closed here: its number may be another file's next. */
void gbi_fork_keeps(int fd);

#endif
