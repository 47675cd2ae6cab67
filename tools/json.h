/* tools: text as JSON. */
#ifndef GB_TOOL_JSON_H
#define GB_TOOL_JSON_H

#include <stdio.h>

/* In quotes, with what JSON does not take as it is escaped. */
void tool_put_json(FILE *out, const char *text);

#endif
