#include "base/base.h"

#include <inttypes.h>
#include <stdio.h>

static const struct {
  const char *name;
  size_t bytes;
} dtypes[] = {
#define ROW(name, number, bytes, text) [number] = {text, bytes},
    GB_DTYPE_TABLE(ROW)
#undef ROW
};

size_t gb_dtype_bytes(gb_dtype dtype) {
  size_t index = (size_t)(unsigned)dtype;
  return index < GBI_COUNT(dtypes) ? dtypes[index].bytes : 0;
}

const char *gb_dtype_name(gb_dtype dtype) {
  size_t index = (size_t)(unsigned)dtype;
  return index < GBI_COUNT(dtypes) ? dtypes[index].name : "unknown";
}

const char *gb_redop_name(gb_redop op) {
  static const char *const names[] = {"sum", "avg",     "max",
                                      "min", "product", "band",
                                      "bor", "bxor",    "premul_sum"};
  size_t index = (size_t)(unsigned)op;
  return index < GBI_COUNT(names) ? names[index] : "unknown";
}

gbi_class gbi_dtype_class(gb_dtype dtype) {
  switch (dtype) {
    case GB_INT8:
    case GB_UINT8:
    case GB_INT16:
    case GB_UINT16:
    case GB_INT32:
    case GB_UINT32:
    case GB_INT64:
    case GB_UINT64: return GBI_CLASS_INTEGER;
    case GB_BOOL: return GBI_CLASS_BOOL;
    case GB_FLOAT16:
    case GB_BFLOAT16:
    case GB_FLOAT32:
    case GB_FLOAT64: return GBI_CLASS_FLOATING;
    case GB_FLOAT8_E4M3FN:
    case GB_FLOAT8_E5M2:
    case GB_FLOAT8_E4M3FNUZ:
    case GB_FLOAT8_E5M2FNUZ: return GBI_CLASS_FLOAT8;
    case GB_COMPLEX64:
    case GB_COMPLEX128: return GBI_CLASS_COMPLEX;
    default: return GBI_CLASS_NONE;
  }
}

gb_dtype gbi_wide_dtype(gb_dtype dtype) {
  bool narrow = dtype == GB_FLOAT16 || dtype == GB_BFLOAT16 ||
                gbi_dtype_class(dtype) == GBI_CLASS_FLOAT8;
  return narrow ? GB_FLOAT32 : dtype;
}

/* Bit c of row r: class c can be reduced with r. */
int gb_redop_supported(gb_redop op, gb_dtype dtype) {
  enum {
    INTEGERS = 1 << GBI_CLASS_INTEGER,
    BOOLS = 1 << GBI_CLASS_BOOL,
    FLOATS = 1 << GBI_CLASS_FLOATING | 1 << GBI_CLASS_FLOAT8,
    COMPLEX = 1 << GBI_CLASS_COMPLEX,
    ORDERED = INTEGERS | BOOLS | FLOATS
  };
  static const uint8_t classes[GB_REDOP_COUNT] = {
      [GB_SUM] = ORDERED | COMPLEX, [GB_AVG] = FLOATS | COMPLEX,
      [GB_MAX] = ORDERED,           [GB_MIN] = ORDERED,
      [GB_PRODUCT] = ORDERED,       [GB_BAND] = INTEGERS | BOOLS,
      [GB_BOR] = INTEGERS | BOOLS,  [GB_BXOR] = INTEGERS | BOOLS,
      [GB_PREMUL_SUM] = FLOATS,
  };
  size_t index = (size_t)(unsigned)op;
  return index < GBI_COUNT(classes) &&
         classes[index] >> gbi_dtype_class(dtype) & 1;
}

const char *gbi_op_name(int op) {
  static const char *const names[] = {
      "unknown",
      "all_reduce",
      "broadcast",
      "all_gather_into_tensor",
      "reduce_scatter_tensor",
      "barrier",
      "reduce",
      "gather",
      "scatter",
      "all_to_all",
      "all_gather_v",
      "reduce_scatter_v",
      "send",
      "recv",
  };
  return op > 0 && op < GBI_OP_COUNT ? names[op] : names[0];
}

bool gbi_call_equal(const gbi_call *a, const gbi_call *b) {
  return a->seq == b->seq && a->count == b->count && a->root == b->root &&
         a->op == b->op && a->dtype == b->dtype && a->redop == b->redop;
}

static bool has_lengths(const gbi_call *call) {
  return call->op == GBI_OP_ALL_GATHER_V || call->op == GBI_OP_REDUCE_SCATTER_V;
}

void gbi_call_text(const gbi_call *call, char *buffer, size_t bytes) {
  gbi_text text;
  gbi_text_init(&text, buffer, bytes);
  gbi_text_add(&text, "%s number ", gbi_op_name(call->op));
  if (call->seq & GBI_SEQ_CAPTURED)
    gbi_text_add(&text,
                 "%" PRIu64 " of the captured calls, replay %" PRIu64 ",",
                 call->seq % GBI_SEQ_CAPTURES_MAX,
                 (call->seq & ~GBI_SEQ_CAPTURED) / GBI_SEQ_CAPTURES_MAX);
  else
    gbi_text_add(&text, "%" PRIu64, call->seq);
  if (call->op == GBI_OP_BARRIER) return;
  gbi_text_add(&text, " of ");
  if (call->op != GBI_OP_ALL_TO_ALL)
    gbi_text_add(&text, "%" PRIu64 " ", call->count);
  gbi_text_add(&text, "%s", gb_dtype_name((gb_dtype)call->dtype));
  if (call->redop != 255)
    gbi_text_add(&text, ", %s", gb_redop_name((gb_redop)call->redop));
  if (call->root < 0 || has_lengths(call)) return;
  bool onto = call->op == GBI_OP_REDUCE || call->op == GBI_OP_GATHER;
  gbi_text_add(&text, " %s rank %d", onto ? "onto" : "from", (int)call->root);
}

gb_status gbi_fail_mismatch(gb_error *error, int rank_a, const gbi_call *a,
                            int rank_b, const gbi_call *b) {
  char text_a[160], text_b[160];
  bool lengths = has_lengths(a) && a->op == b->op && a->count == b->count &&
                 a->root != b->root;
  /* The lower rank first, so that both sides write the same sentence. */
  if (rank_b < rank_a) {
    int rank = rank_a;
    const gbi_call *call = a;
    rank_a = rank_b, a = b;
    rank_b = rank, b = call;
  }
  gbi_call_text(a, text_a, sizeof text_a);
  gbi_call_text(b, text_b, sizeof text_b);
  return gbi_fail_rank(
      error, GB_ERR_MISMATCH, rank_b,
      "ranks disagree: rank %d called %s, rank %d called %s%s. Every rank must "
      "make the same calls in the same order with the same sizes and types",
      rank_a, text_a, rank_b, text_b,
      lengths ? ", and the rows' lengths differ" : "");
}
