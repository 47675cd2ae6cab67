/* Which receive gets which message. A bucket holds equal keys and others whose
 * hash is the same; its two lists are in the order in which things came, so the
 * first that fits is the right one. */
#include "p2p/state.h"

#include <stdlib.h>

static uint32_t hash(uint8_t class, uint32_t group, uint64_t tag,
                     uint32_t step) {
  uint64_t h = tag ^ (uint64_t)group << 32 ^ (uint64_t)step << 8 ^ class;
  h *= UINT64_C(0x9e3779b97f4a7c15);
  h ^= h >> 32;
  h *= UINT64_C(0xd6e8feb86659fd93);
  return (uint32_t)(h >> 40) % GBI_P2P_BUCKETS;
}

static gbi_p2p_bucket *bucket_of_head(gbi_p2p *p, const gbi_p2p_head *h) {
  return &p->buckets[hash(h->class, h->group, h->tag, h->step)];
}

static bool fits(const gbi_p2p_op *op, const gbi_p2p_head *h, int source) {
  if (op->class != h->class || op->group != h->group || op->tag != h->tag ||
      op->step != h->step)
    return false;
  if (op->peer != GB_ANY_SOURCE) return op->peer == source;
  for (int i = 0; i < op->members_count; i++)
    if (op->members[i] == source) return true;
  return false;
}

gbi_p2p_op *gbi_p2p_match_receive(gbi_p2p *p, const gbi_p2p_head *head,
                                  int source) {
  gbi_p2p_op *op = bucket_of_head(p, head)->posted.first;
  while (op && !fits(op, head, source)) op = op->next;
  if (op) gbi_p2p_unlink(op);
  return op;
}

void gbi_p2p_keep_message(gbi_p2p *p, gbi_p2p_message *m) {
  gbi_p2p_bucket *b = bucket_of_head(p, &m->head);
  m->next = NULL;
  m->prev = b->last;
  if (b->last)
    b->last->next = m;
  else
    b->first = m;
  b->last = m;
  m->in_bucket = true;
}

void gbi_p2p_forget_message(gbi_p2p *p, gbi_p2p_message *m) {
  if (!m->in_bucket) return;
  gbi_p2p_bucket *b = bucket_of_head(p, &m->head);
  if (m->prev)
    m->prev->next = m->next;
  else
    b->first = m->next;
  if (m->next)
    m->next->prev = m->prev;
  else
    b->last = m->prev;
  m->in_bucket = false;
}

void gbi_p2p_post_receive(gbi_p2p *p, gbi_p2p_op *op) {
  gbi_p2p_bucket *b =
      &p->buckets[hash(op->class, op->group, op->tag, op->step)];
  gbi_p2p_message *m = b->first;
  while (m && !fits(op, &m->head, m->link->rank)) m = m->next;
  if (m) {
    gbi_p2p_forget_message(p, m);
    gbi_p2p_meet_message(op, m);
  } else {
    op->phase = GBI_OP_POSTED;
    gbi_p2p_push(&b->posted, op);
  }
}

/* Those that are still arriving belong to their links. */
void gbi_p2p_free_messages(gbi_p2p *p) {
  for (int i = 0; i < GBI_P2P_BUCKETS; i++) {
    gbi_p2p_message *m = p->buckets[i].first;
    p->buckets[i].first = p->buckets[i].last = NULL;
    while (m) {
      gbi_p2p_message *next = m->next;
      m->in_bucket = false;
      if (m->arrived || m->head.kind == GBI_HEAD_RTS) free(m);
      m = next;
    }
  }
}

/* ---- lists ---- */

void gbi_p2p_push(gbi_p2p_list *list, gbi_p2p_op *op) {
  op->list = list;
  op->next = NULL;
  op->prev = list->last;
  if (list->last)
    list->last->next = op;
  else
    list->first = op;
  list->last = op;
}

void gbi_p2p_unlink(gbi_p2p_op *op) {
  gbi_p2p_list *list = op->list;
  if (!list) return;
  if (op->prev)
    op->prev->next = op->next;
  else
    list->first = op->next;
  if (op->next)
    op->next->prev = op->prev;
  else
    list->last = op->prev;
  op->list = NULL;
}
