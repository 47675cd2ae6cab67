/* core: do the records of all ranks fit together? Pure. */
#ifndef GBI_CORE_AGREEMENT_H
#define GBI_CORE_AGREEMENT_H

#include "core/discovery.h"

/* Spec 3.5, checks 1 to 7 in order. REFUSED with one text. */
gb_status gbi_agreement_check(const gbi_record *records, int world,
                              gb_error *error);
/* Spec 3.7, once the islands are known. */
gb_status gbi_agreement_check_gpus(const gbi_record *records,
                                   const gbi_topology *topology,
                                   gb_error *error);
/* "", or the value of a fact. */
const char *gbi_record_fact(const gbi_record *record, const char *name);

#endif
