/* Types and operations of ours in the library's terms. */
#include "ccl/native/state.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

bool gbi_native_type(gb_dtype dtype, ncclDataType_t *type_p) {
  switch (dtype) {
    case GB_INT8: *type_p = ncclInt8; return true;
    case GB_UINT8: *type_p = ncclUint8; return true;
    case GB_INT32: *type_p = ncclInt32; return true;
    case GB_UINT32: *type_p = ncclUint32; return true;
    case GB_INT64: *type_p = ncclInt64; return true;
    case GB_UINT64: *type_p = ncclUint64; return true;
    case GB_FLOAT16: *type_p = ncclFloat16; return true;
    case GB_BFLOAT16: *type_p = ncclBfloat16; return true;
    case GB_FLOAT32: *type_p = ncclFloat32; return true;
    case GB_FLOAT64: *type_p = ncclFloat64; return true;
    default: return false;
  }
}

/* Whether the GPU's own float8 is that of `dtype`. AMD: gfx94x has the FNUZ
 * encoding, gfx950 and gfx12 the OCP one. NCCL refuses to reduce float8 on
 * anything older than sm_90. */
static bool arch_has_float8(gbi_vendor vendor, const char *arch, bool fnuz) {
  if (vendor == GBI_NVIDIA) {
    int number = 0;
    return !fnuz && sscanf(arch, "sm_%d", &number) == 1 && number >= 90;
  }
  if (fnuz) return strncmp(arch, "gfx94", 5) == 0;
  return strncmp(arch, "gfx950", 6) == 0 || strncmp(arch, "gfx12", 5) == 0;
}

static bool float8_type(const gbi_native *native, gb_dtype dtype,
                        ncclDataType_t *type_p) {
  gbi_vendor vendor = native->device->ops->vendor;
  bool e4m3 = dtype == GB_FLOAT8_E4M3FN || dtype == GB_FLOAT8_E4M3FNUZ;
  bool fnuz = dtype == GB_FLOAT8_E4M3FNUZ || dtype == GB_FLOAT8_E5M2FNUZ;
  if (gbi_dtype_class(dtype) != GBI_CLASS_FLOAT8) return false;
  if (native->nccl->version < (vendor == GBI_NVIDIA ? 22400 : 22105))
    return false;
  if (!arch_has_float8(vendor, native->device->facts.arch, fnuz)) return false;
  *type_p =
      (ncclDataType_t)(e4m3 ? GBI_NCCL_FLOAT8_E4M3 : GBI_NCCL_FLOAT8_E5M2);
  return true;
}

static bool plain_operation(gb_redop redop, ncclRedOp_t *op_p) {
  switch (redop) {
    case GB_SUM: *op_p = ncclSum; return true;
    case GB_PRODUCT: *op_p = ncclProd; return true;
    case GB_MAX: *op_p = ncclMax; return true;
    case GB_MIN: *op_p = ncclMin; return true;
    default: return false;
  }
}

bool gbi_native_reduces(const gbi_native *native, gb_dtype dtype,
                        gb_redop redop) {
  ncclDataType_t type;
  ncclRedOp_t op;
  bool plain = plain_operation(redop, &op);
  /* A factor in float8 would be off by percents: no AVG, no PREMUL_SUM. */
  if (float8_type(native, dtype, &type)) return plain;
  if (!gbi_native_type(dtype, &type)) return false;
  bool scales = redop == GB_AVG || redop == GB_PREMUL_SUM;
  return plain || (scales && gbi_dtype_class(dtype) == GBI_CLASS_FLOATING);
}

/* `value` as a binary float of so many bits, rounded to nearest even. */
static uint64_t float_bits(double value, int exponent_bits, int fraction_bits) {
  int bias = (1 << (exponent_bits - 1)) - 1;
  uint64_t infinity = ((UINT64_C(1) << exponent_bits) - 1) << fraction_bits;
  uint64_t sign = (uint64_t)(signbit(value) != 0)
                  << (exponent_bits + fraction_bits);
  uint64_t one = UINT64_C(1) << fraction_bits;
  double size = fabs(value);
  if (isnan(size)) return infinity | one >> 1;
  if (isinf(size)) return sign | infinity;
  int exponent = 0;
  (void)frexp(size, &exponent);
  exponent = GBI_MAX(exponent - 1, 1 - bias);
  uint64_t units = (uint64_t)rint(ldexp(size, fraction_bits - exponent));
  if (units < one) return sign | units; /* subnormal */
  if (exponent > bias) return sign | infinity;
  /* A carry of the fraction goes where it belongs. */
  uint64_t bits =
      ((uint64_t)(exponent + bias) << fraction_bits) + (units - one);
  return sign | GBI_MIN(bits, infinity);
}

/* A factor is given to the library in the type that it multiplies. */
static uint64_t factor_bits(double factor, ncclDataType_t type) {
  uint64_t bits = 0;
  float single = (float)factor;
  switch (type) {
    case ncclFloat16: return float_bits(factor, 5, 10);
    case ncclBfloat16: return float_bits(factor, 8, 7);
    case ncclFloat32: memcpy(&bits, &single, sizeof single); break;
    default: memcpy(&bits, &factor, sizeof factor); break;
  }
  return bits;
}

static gbi_native_op *find_operation(gbi_native *native, ncclDataType_t type,
                                     uint64_t bits) {
  for (int i = 0; i < GBI_NATIVE_OPS_MOST; i++) {
    gbi_native_op *op = &native->ops[i];
    if (op->used && op->type == type && op->factor_bits == bits) return op;
  }
  return NULL;
}

/* The place that was used longest ago, or never. */
static gbi_native_op *oldest_operation(gbi_native *native) {
  gbi_native_op *oldest = &native->ops[0];
  for (int i = 1; i < GBI_NATIVE_OPS_MOST; i++)
    if (native->ops[i].used < oldest->used) oldest = &native->ops[i];
  return oldest;
}

/* An operation may be destroyed while calls with it are under way: the library
 * took what it needs when they were issued. */
static gb_status premul_operation(gbi_native *native, ncclComm_t comm,
                                  ncclDataType_t type, double factor,
                                  ncclRedOp_t *op_p, gb_error *error) {
  uint64_t bits = factor_bits(factor, type);
  gbi_native_op *op = find_operation(native, type, bits);
  if (!op) {
    op = oldest_operation(native);
    if (op->used) native->nccl->ncclRedOpDestroy(op->op, comm);
    op->used = 0;
    ncclResult_t result = native->nccl->ncclRedOpCreatePreMulSum(
        &op->op, &bits, type, ncclScalarHostImmediate, comm);
    if (result != ncclSuccess)
      return gbi_native_fail(native, result, "could not make an operation",
                             error);
    op->type = type;
    op->factor_bits = bits;
  }
  op->used = ++native->calls_so_far;
  *op_p = op->op;
  return GB_OK;
}

gb_status gbi_native_operation(gbi_native *native, ncclComm_t comm,
                               const gbi_native_call *call,
                               ncclDataType_t *type_p, ncclRedOp_t *op_p,
                               gb_error *error) {
  if (!gbi_native_reduces(native, call->dtype, call->redop))
    return gbi_fail(error, GB_ERR_UNSUPPORTED,
                    "%s %s cannot reduce %s by %s on %s", native->nccl->name,
                    native->nccl->version_text, gb_dtype_name(call->dtype),
                    gb_redop_name(call->redop), native->device->facts.arch);
  if (!gbi_native_type(call->dtype, type_p))
    (void)float8_type(native, call->dtype, type_p);
  if (plain_operation(call->redop, op_p)) return GB_OK;
  if (call->redop == GB_PREMUL_SUM)
    return premul_operation(native, comm, *type_p, call->factor, op_p, error);
  if (call->divisor == 0 || call->divisor == native->members_count) {
    *op_p = ncclAvg;
    return GB_OK;
  }
  return premul_operation(native, comm, *type_p, 1.0 / call->divisor, op_p,
                          error);
}

void gbi_native_operations_free(gbi_native *native, ncclComm_t comm) {
  for (int i = 0; i < GBI_NATIVE_OPS_MOST; i++)
    if (native->ops[i].used)
      native->nccl->ncclRedOpDestroy(native->ops[i].op, comm);
  memset(native->ops, 0, sizeof native->ops);
}
