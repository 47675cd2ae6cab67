#include "transport/transport.h"

#include <string.h>

static const gbi_transport_ops *const transports[] = {
    /* One line per transport, in the order auto prefers them. */
    &gbi_transport_shm,
    &gbi_transport_verbs,
    &gbi_transport_tcp,
    NULL,
};
enum { TRANSPORTS = GBI_COUNT(transports) - 1 };

const gbi_transport_ops *const *gbi_transport_all(int *count_p) {
  *count_p = TRANSPORTS;
  return transports;
}

const gbi_transport_ops *gbi_transport_find(const char *name) {
  if (!strcmp(name, "multitcp")) name = "tcp";
  for (int i = 0; i < TRANSPORTS; i++)
    if (!strcmp(transports[i]->name, name)) return transports[i];
  return NULL;
}

void gbi_transport_names(char *buffer, size_t bytes) {
  gbi_text text;
  gbi_text_init(&text, buffer, bytes);
  for (int i = 0; i < TRANSPORTS; i++)
    gbi_text_add(&text, "%s%s", i ? ", " : "", transports[i]->name);
}
